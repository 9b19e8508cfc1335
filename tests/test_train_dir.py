import fcntl
import os

import pytest

from runtime.cluster.task import Task
from runtime.session.train_dir import TrainDirError, make_train_dir

CHIEF = Task("worker", 0, ("a:1",), ("b:2", "c:3"))
OTHER = Task("worker", 1, ("a:1",), ("b:2", "c:3"))


def test_the_chief_makes_the_train_dir_and_the_others_do_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert make_train_dir(OTHER, "a/b") == f"{tmp_path}/a/b"
    assert not (tmp_path / "a").exists()
    assert make_train_dir(CHIEF, "a/b") == f"{tmp_path}/a/b"
    assert list((tmp_path / "a").iterdir()) == [tmp_path / "a" / "b"]
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["chief.lock"]


def test_a_train_dir_in_use_by_another_job_is_refused(tmp_path):
    lock = tmp_path / "chief.lock"
    with open(lock, "w") as file:
        file.write("process 7 on host.example\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(TrainDirError) as error:
            make_train_dir(CHIEF, str(tmp_path))
        assert str(error.value) == (
            f"--train_dir {tmp_path} is in use by another job, whose chief is process 7 on host.example: end that job,"
            " or give another --train_dir"
        )
        assert lock.read_text() == "process 7 on host.example\n"
        assert list(tmp_path.iterdir()) == [lock], "nothing is touched"
    make_train_dir(CHIEF, str(tmp_path))
    assert lock.read_text().startswith(f"process {os.getpid()} on "), "a lock ends with its process"


def test_a_train_dir_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(TrainDirError, match="file/train cannot be written: Not a directory"):
        make_train_dir(CHIEF, str(tmp_path / "file" / "train"))


def test_without_a_train_dir_the_chief_says_that_nothing_is_saved(caplog):
    assert make_train_dir(OTHER, "") == ""
    assert caplog.text == ""
    assert make_train_dir(CHIEF, "") == ""
    assert "nothing is saved, since --train_dir is not given" in caplog.text
