"""Which examples a data directory has: TFRecord files, or the files of the data set itself."""

from runtime.data import download
from runtime.data.memory import MemorySource
from runtime.data.reader import Reader
from runtime.data.shards import ShardSource
from runtime.data.tfrecords import find_shards, has_shards
from runtime.model.users_files import check_examples
from runtime.process.errors import check_folder
from runtime.process.threads import reminding

# Examples, and how they become the inputs of a run: their numbers or, where they are read for it, themselves.
Source = MemorySource | ShardSource


def open_source(data_dir: str, split: str, reader: Reader) -> Source:
    """Return the examples of one split in `data_dir`; an empty folder is filled first, if `reader` can fetch them.

    Raises:
      UnusableError: a TFRecord file is missing, or is not what it should be; or what `load()` returns is not.
    """
    reading = reminding(f"still reading the examples {split!r}", data_dir)
    check_folder("data_dir", data_dir, is_pattern=False)
    if hasattr(reader, "fetch") and download.may_fetch(data_dir):
        reader.fetch(data_dir)
    if has_shards(data_dir):
        with reading:
            return ShardSource(find_shards(data_dir, split, reader.RECORD_BYTES), reader)
    with reading:
        examples = reader.load(data_dir, split)
    check_examples(examples, reader.INPUT, f"the examples {split!r} of --data_dir {data_dir}")
    return MemorySource(examples)
