"""TFRecord files whose records have one length: their names, what frames a record, and a first look at each file."""

import glob
import os
import re
import struct
import zlib
from typing import NamedTuple

from runtime.process.errors import UnusableError

SUFFIX = ".tfrecord"
UNFINISHED = ".unfinished"  # at the end of the name of a folder into which a process converts
NAME = re.compile(r"(?P<split>\w+)-\d{5}-of-(?P<count>\d{5})\.tfrecord")
# A record is its length, 8 bytes, the CRC of these, 4 bytes, the example, and the CRC of that, 4 bytes.
# https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
HEADER_BYTES, FOOTER_BYTES = 12, 4
REMEDY = "convert again, or copy it again"

_CRC_TABLE = list(range(256))  # becomes the CRC-32C (Castagnoli) of each byte
for _ in range(8):
    _CRC_TABLE = [(crc >> 1) ^ (0x82F63B78 if crc & 1 else 0) for crc in _CRC_TABLE]


class Shard(NamedTuple):
    """A file of records."""

    path: str
    num_examples: int
    checksum: int  # of its name, its length, and its first and last record


def has_shards(data_dir: str) -> bool:
    """Return whether `data_dir` has TFRecord files, which take the place of the four files."""
    pattern = os.path.join(glob.escape(data_dir), "*.tfrecord")
    return any(not os.path.isdir(path) for path in glob.iglob(pattern))


def name_of(split: str, index: int, num_shards: int) -> str:
    """Return the name of a shard."""
    return f"{split}-{index:05d}-of-{num_shards:05d}{SUFFIX}"


def find_shards(data_dir: str, split: str, record_bytes: int) -> list[Shard]:
    """Return the files of one split, `train` or `t10k`, in `data_dir`, after a look at each.

    The look does not depend on the size of the files: at their lengths, and at their first and last records.

    Raises:
      UnusableError: a file is missing, or is not what it should be.
    """
    if os.path.abspath(data_dir).endswith(UNFINISHED):
        raise UnusableError(
            f"--data_dir {data_dir} is what an unfinished conversion has left: remove it, convert again"
        )
    matches = [NAME.fullmatch(name) for name in os.listdir(data_dir)]
    counts = sorted({int(match["count"]) for match in matches if match and match["split"] == split} - {0})
    expected = f"expected {split}-00000-of-00004{SUFFIX} and so on"
    if not counts:
        raise UnusableError(f"--data_dir {data_dir} has TFRecord files, but none of {split}: {expected}")
    if len(counts) > 1:
        raise UnusableError(
            f"--data_dir {data_dir} has files of several sets, of {counts[0]} and of {counts[1]} shards of {split}:"
            " keep one set"
        )
    paths = [os.path.join(data_dir, name_of(split, index, counts[0])) for index in range(counts[0])]
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        raise UnusableError(
            f"--data_dir {data_dir} lacks {os.path.basename(missing[0])}: {len(missing)} of {len(paths)} shards of"
            f" {split} are missing; copy them there, or convert again"
        )
    return [_look_at(path, record_bytes) for path in paths]


def make_header(record_bytes: int) -> bytes:
    """Return what stands before each record."""
    length = struct.pack("<Q", record_bytes)
    return length + _masked_crc(length)


def _look_at(path: str, record_bytes: int) -> Shard:
    """Check the length of a file, and its first and last records."""
    framed_bytes = HEADER_BYTES + record_bytes + FOOTER_BYTES
    try:
        with open(path, "rb") as file:
            num_bytes = file.seek(0, os.SEEK_END)
            file.seek(0)
            first = file.read(framed_bytes)
            file.seek(max(0, num_bytes - framed_bytes))
            last = file.read(framed_bytes)
    except OSError as error:
        raise UnusableError(f"{path} cannot be read: {error.strerror}") from error
    header = make_header(record_bytes)
    if first[:HEADER_BYTES] != header:
        raise UnusableError(f"{path} does not begin with a record of {record_bytes} bytes: {REMEDY}")
    if num_bytes % framed_bytes:
        raise UnusableError(
            f"{path} has {num_bytes} bytes, expected a multiple of {framed_bytes}, which a record takes: {REMEDY}"
        )
    for which, framed in (("first", first), ("last", last)):
        if framed != header + framed[HEADER_BYTES:-FOOTER_BYTES] + _masked_crc(framed[HEADER_BYTES:-FOOTER_BYTES]):
            raise UnusableError(f"{path}: the {which} record is damaged: {REMEDY}")
    sample = f"{os.path.basename(path)} {num_bytes}".encode() + first + last
    return Shard(path, num_bytes // framed_bytes, zlib.crc32(sample))


def _masked_crc(content: bytes) -> bytes:
    """Return the masked CRC-32C of a TFRecord."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)
