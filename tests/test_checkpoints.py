import concurrent.futures
import contextlib
import errno
import fcntl
import json
import os
import pathlib
import re
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import poll_for
from runtime.cluster.host_lists import HostLists
from runtime.cluster.task import Task
from runtime.process.errors import UnsavedError, UnusableError
from runtime.records.folder import RunFolder
from runtime.saving import checkpoint_hook, checkpoints, train_dir
from runtime.saving.result import Result
from runtime.saving.saver import make_saver
from runtime.saving.train_dir import open_train_dir
from tests.models import make_model
from tests.test_users_files import INPUT, sum_up

CHIEF = Task("worker", 0, ("a:1",), ("b:2", "c:3"))
OTHER = Task("worker", 1, ("a:1",), ("b:2", "c:3"))


def save(folder, shapes):
    """Save a checkpoint with zeros of these shapes, and return its path."""
    with tf.Graph().as_default(), tf.Session() as session:
        saved = [tf.get_variable(name, shape, initializer=tf.zeros_initializer()) for name, shape in shapes.items()]
        session.run(tf.global_variables_initializer())
        return tf.train.Saver(saved).save(session, str(folder / "model.ckpt"), global_step=5)


@pytest.fixture
def model(graph):
    tf.get_variable("steps", [])
    tf.get_variable("w", [3, 2])


def test_a_checkpoint_of_this_model_may_have_more_in_it(model, tmp_path):
    save(tmp_path, {"w": [3, 2], "steps": [], "other": [1]})
    checkpoints.check_last_checkpoint(RunFolder(tmp_path), {})


def test_without_a_checkpoint_there_is_nothing_to_check(model, tmp_path):
    checkpoints.check_last_checkpoint(RunFolder(tmp_path), {})
    checkpoints.check_last_checkpoint(RunFolder(""), {})


@pytest.mark.promises("another-model")
@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"w": [3, 2]}, "has no variable steps, expected shape []"),
        ({"w": [3, 5], "steps": []}, "has w of shape [3, 5], expected [3, 2]"),
        ({"steps": []}, "has no variable w, expected shape [3, 2]"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(model, tmp_path, shapes, message):
    path = save(tmp_path, shapes)
    with pytest.raises(UnusableError) as error:
        checkpoints.check_last_checkpoint(RunFolder(tmp_path), {})
    assert str(error.value) == f"{path} {message}: give the flags that it was trained with, or another --train_dir"


@pytest.mark.promises("exchanged-weights")
@pytest.mark.parametrize(
    "join", [tf.add_n, lambda parts: tf.concat(parts, 1), tf.stack], ids=["sum", "concat", "stack"]
)
def test_weights_that_were_those_of_another_variable_are_refused(graph, tmp_path, join):
    def find_uses(order, scale=1.0):
        def build_logits(inputs, is_training):
            inputs = tf.cast(inputs[:, 0], tf.float32)
            return scale * join([inputs @ tf.Variable(tf.zeros([2, 2])) * float(number) for number in order])

        return make_model(build_logits, sum_up, INPUT).kept_uses

    for _ in range(3):
        tf.Variable(tf.zeros([2, 2]))
    path = save(tmp_path, {"Variable": [2, 2], "Variable_1": [2, 2], "Variable_2": [2, 2]})
    for another in (find_uses("312"), find_uses("213", scale=2.0), find_uses("123"), find_uses("123")):
        checkpoints.check_last_checkpoint(RunFolder(tmp_path), another)
    for _ in range(2):
        with pytest.raises(UnusableError) as error:
            checkpoints.check_last_checkpoint(RunFolder(tmp_path), find_uses("213"))
        assert str(error.value).startswith(
            f"{path} has the weights of Variable under the name Variable_1: name the variables, or "
        )


def test_what_to_do_about_a_folder_that_cannot_be_written_follows_its_reason(tmp_path):
    folder = RunFolder(tmp_path / "train")
    assert folder.remedy_for("NotFoundError: …; No such file or directory") == "create the folder again"
    (tmp_path / "train").mkdir()
    assert folder.remedy_for("ResourceExhaustedError: …; No space left on device").startswith("free disk space")
    assert folder.remedy_for("OutOfRangeError: File too large") == "raise the limit of file sizes, ulimit -f"


def test_what_tells_exchanged_weights_may_be_damaged_and_is_said_to_be(model, tmp_path, caplog):
    path = save(tmp_path, {"w": [3, 2], "steps": []})
    folder = RunFolder(tmp_path)
    checkpoints.check_last_checkpoint(folder, {"w": "1"})
    assert caplog.text == ""
    pathlib.Path(folder.uses).write_bytes(b"\0" * 20)
    checkpoints.check_last_checkpoint(folder, {"w": "1"})
    assert f"{folder.uses} cannot be read: whether {path} has all under the right names is not checked" in caplog.text
    assert json.loads(pathlib.Path(folder.uses).read_text()) == {"w": "1"}


@pytest.mark.parametrize("damage", [lambda data: data[:10], lambda data: data[:-1] + b"x"])
def test_a_checkpoint_whose_data_is_damaged_is_refused(model, tmp_path, damage):
    path = save(tmp_path, {"w": [3, 2], "steps": []})
    (data,) = tmp_path.glob("*.data-*")
    data.write_bytes(damage(data.read_bytes()))
    with (
        tf.Session() as session,
        pytest.raises(UnusableError, match=f"^{path} cannot be read .*: name an older one in"),
    ):
        checkpoints.restore(tf.train.Saver(), session, path)


def test_a_broken_checkpoint_is_refused(model, tmp_path):
    path = save(tmp_path, {"w": [3, 2], "steps": []})
    with open(path + ".index", "r+b") as file:
        file.truncate(10)
    with pytest.raises(UnusableError) as error:
        checkpoints.check_last_checkpoint(RunFolder(tmp_path), {})
    assert str(error.value).startswith(f"{path} cannot be read (")
    assert f"name an older one in {tmp_path}/checkpoint, or give another --train_dir" in str(error.value)


@pytest.mark.parametrize("name", ["checkpoint", "model.ckpt-5.index", "model.ckpt-5.data-00000-of-00001"])
def test_a_checkpoint_that_this_user_may_not_read_is_told(model, tmp_path, obeying_permissions, name):
    path = save(tmp_path, {"w": [3, 2], "steps": []})
    whose = path if name.endswith(".index") else tmp_path / name  # TensorFlow opens the index, and names it at the end
    (tmp_path / name).chmod(0)
    with pytest.raises(UnusableError) as error:
        checkpoints.check_last_checkpoint(RunFolder(tmp_path), {})
    assert re.fullmatch(rf"{whose} cannot be read \(.*Permission denied\): fix its permissions", str(error.value))


def test_a_checkpoint_that_cannot_be_read_any_more_while_its_run_trains_is_told(model, tmp_path, obeying_permissions):
    path = save(tmp_path, {"w": [3, 2], "steps": []})
    pathlib.Path(f"{path}.data-00000-of-00001").chmod(0)
    in_this_thread = tf.ConfigProto(inter_op_parallelism_threads=-1)
    with (
        tf.Session(config=in_this_thread) as session,
        pytest.raises(UnusableError, match=f"^{path} cannot be read .*: fix its permissions$"),
    ):
        checkpoints.restore(tf.train.Saver(), session, path)


@pytest.mark.parametrize("damage", ["index is missing", "not a checkpoint state", "empty", "a folder"])
def test_a_new_model_never_takes_the_place_of_a_checkpoint_that_is_not_found(model, tmp_path, damage):
    path, state = save(tmp_path, {"w": [3, 2], "steps": []}), tmp_path / "checkpoint"
    if damage == "index is missing":
        os.remove(f"{path}.index")
    else:
        state.unlink()
        state.mkdir() if damage == "a folder" else state.write_text("" if damage == "empty" else "model.ckpt-5")
    for look in (
        lambda folder: checkpoints.check_last_checkpoint(folder, {}),
        lambda folder: checkpoints.recover(tf.train.Saver(), folder),
    ):
        with pytest.raises(
            UnusableError, match=f"{state} names no existing checkpoint: name one in it or, to start over"
        ):
            look(RunFolder(tmp_path))


def test_a_new_model_never_takes_the_place_of_checkpoints_that_no_file_names(model, tmp_path):
    """As where model.ckpt-* alone was copied. A process that was killed may have left one, as its first."""
    (tmp_path / "model.ckpt-0.index").touch()
    assert checkpoints.find_last_checkpoint(RunFolder(tmp_path)) is None
    (tmp_path / "model.ckpt-7.index").touch()
    assert checkpoints.find_last_checkpoint(RunFolder(tmp_path)) == f"{tmp_path}/model.ckpt-7", "the first with steps"
    assert checkpoints.list_checkpoints(RunFolder(tmp_path)) == [f"{tmp_path}/model.ckpt-7"]
    (tmp_path / "checkpoint").unlink()
    for step in (7, 30):
        (tmp_path / f"model.ckpt-{step}.index").touch()
    found = (
        rf'^{tmp_path}/model.ckpt-30 exists, but .* does not: .*write model_checkpoint_path: "model.ckpt-30" into it'
    )
    with pytest.raises(UnusableError, match=found):
        checkpoints.check_last_checkpoint(RunFolder(tmp_path), {})


def test_what_cannot_be_removed_of_a_failed_checkpoint_stays(tmp_path):
    (tmp_path / "model.ckpt-5.tempstate1").mkdir()
    checkpoint_hook.remove_unfinished(RunFolder(tmp_path))


def test_a_checkpoint_of_which_a_part_is_elsewhere_is_refused(model, tmp_path):
    path = save(tmp_path, {"w": [3, 2], "steps": []})
    os.rename(f"{path}.data-00000-of-00001", f"{path}.data-00001-of-00002")
    with pytest.raises(UnusableError) as error:
        checkpoints.check_last_checkpoint(RunFolder(tmp_path), {})
    assert str(error.value).startswith(f"{path} has 1 of its 2 parts: copy the others from where they were written")


def test_a_checkpoint_with_a_link_to_nothing_in_the_place_of_its_data_is_refused(model, tmp_path):
    path = save(tmp_path, {"w": [3, 2], "steps": []})
    (data,) = tmp_path.glob("*.data-*")
    data.unlink()
    data.symlink_to("/no/such/disk")
    with pytest.raises(UnusableError, match=f"^{path} has none of its parts"):
        checkpoints.check_last_checkpoint(RunFolder(tmp_path), {})


def test_a_checkpoint_that_lost_its_parts_while_its_run_trains_is_told_as_before_it(model, tmp_path):
    path = save(tmp_path, {"w": [3, 2], "steps": []})
    os.remove(f"{path}.data-00000-of-00001")
    with tf.Session() as session, pytest.raises(UnusableError, match=r"has none of its parts.* name an older one in"):
        checkpoints.restore(tf.train.Saver(), session, path)


@pytest.mark.promises("checkpoints-by-chief")
@pytest.mark.parametrize(
    ("written_by", "places"), [("ps", {"/job:ps/task:0", "/job:ps/task:1"}), ("chief", {"/job:worker/task:0"})]
)
def test_only_who_writes_checkpoints_uses_files(graph, written_by, places):
    for ps in range(2):
        with tf.device(f"/job:ps/task:{ps}"):
            tf.get_variable(f"w{ps}", [3, 2])
    make_saver(CHIEF, written_by, keep_checkpoints=5)
    placed = {op.type: set() for op in graph.get_operations()}
    for op in graph.get_operations():
        placed[op.type].add(op.device.removesuffix("/device:CPU:0"))
    assert placed["SaveV2"] == placed["RestoreV2"] == places
    assert placed["AssignVariableOp"] == {"/job:ps/task:0", "/job:ps/task:1"}


def test_a_checkpoint_that_was_restored_is_left_as_it_is(graph, tmp_path):
    tf.train.create_global_step()
    path = str(tmp_path / "model.ckpt-0")

    def restore(_, session):
        with tf.Session(graph=tf.Graph()) as earlier_run, earlier_run.graph.as_default():
            tf.train.create_global_step()
            tf.get_variable("w/Adam", [3, 2])
            earlier_run.run(tf.global_variables_initializer())
            tf.train.Saver().save(earlier_run, str(tmp_path / "model.ckpt"), global_step=0)
        saver.restore(session, path)

    saver = tf.train.Saver()
    scaffold = tf.train.Scaffold(saver=saver, init_fn=restore)
    hook = checkpoint_hook.CheckpointHook(CHIEF, RunFolder(tmp_path), scaffold, save_secs=60, train_steps=100)
    with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(scaffold), [hook]):
        assert "w/Adam" in dict(tf.train.list_variables(path)), "the state of another optimizer is lost"


@pytest.mark.parametrize("name", ["block/part_1/weights", "part_7/weights"])
def test_a_variable_whose_name_looks_like_that_of_a_slice_is_whole(graph, tmp_path, name):
    def build():
        tf.get_variable(name, [3, 2])
        tf.get_variable("block/part_0/weights", [5, 2])
        tf.get_variable("split", [7, 2], partitioner=tf.fixed_size_partitioner(3))
        return tf.train.Saver()

    with tf.Graph().as_default(), tf.Session() as session:
        saver = build()
        session.run(tf.global_variables_initializer())
        saver.save(session, str(tmp_path / "model.ckpt"), global_step=5)
    build()
    checkpoints.check_last_checkpoint(RunFolder(tmp_path), {})


@pytest.fixture
def original(tmp_path, graph):
    """A folder with the checkpoints of five steps, and a state file with absolute paths, as TensorFlow writes it."""
    folder = tmp_path / "original"
    folder.mkdir()
    step = tf.train.create_global_step()
    saver = tf.train.Saver(max_to_keep=5)
    with tf.Session() as session:
        for number in range(1, 6):
            step.load(number, session)
            saver.save(session, str(folder / "model.ckpt"), step, write_meta_graph=False)
    assert f'"{folder}/model.ckpt-1"' in (folder / "checkpoint").read_text()
    return folder


def train_on(folder, num_saves, keep_checkpoints):
    """Restore the last checkpoint in `folder`, save new ones, and return the steps of those that are there then."""
    run, step = RunFolder(folder), tf.train.get_global_step()
    saver = make_saver(CHIEF, "ps", keep_checkpoints)
    hook = checkpoint_hook.CheckpointHook(CHIEF, run, tf.train.Scaffold(saver=saver), save_secs=60, train_steps=100)
    with tf.Session() as session:
        checkpoints.restore(saver, session, checkpoints.recover(saver, run))
        for _ in range(num_saves):
            session.run(step.assign_add(1))
            hook.save(session)
    return steps_in(folder)


def steps_in(folder):
    return sorted(int(path.stem.partition("-")[2]) for path in folder.glob("model.ckpt-*.index"))


@pytest.mark.promises("own-checkpoints")
def test_a_copy_of_a_run_costs_the_original_nothing(original, tmp_path):
    files = {path: path.read_bytes() for path in original.iterdir()}
    copy = tmp_path / "copy"
    shutil.copytree(original, copy)
    assert train_on(copy, num_saves=6, keep_checkpoints=2) == [10, 11]
    assert {path: path.read_bytes() for path in original.iterdir()} == files


@pytest.mark.promises("moved-folder")
@pytest.mark.parametrize("written_in", ["{tmp_path}/original", "../original", r"C:\\runs\\original"])
def test_a_run_that_was_moved_goes_on(original, tmp_path, written_in):
    state = original / "checkpoint"
    separator = "\\\\" if ":" in written_in else "/"
    written_in = written_in.format(tmp_path=tmp_path)
    state.write_text(state.read_text().replace(f"{original}/", written_in + separator))
    moved = original.rename(tmp_path / "moved")
    assert checkpoints.find_last_checkpoint(RunFolder(moved)) == f"{moved}/model.ckpt-5"
    assert train_on(moved, num_saves=1, keep_checkpoints=5) == [2, 3, 4, 5, 6]
    assert not original.exists()


@pytest.mark.promises("old-checkpoints")
def test_fewer_checkpoints_are_kept_from_the_first_save_on(original):
    assert train_on(original, num_saves=0, keep_checkpoints=2) == [1, 2, 3, 4, 5]
    assert train_on(original, num_saves=1, keep_checkpoints=2) == [5, 6]
    assert len(checkpoints.list_checkpoints(RunFolder(original))) == 2


def test_an_older_checkpoint_that_is_named_as_the_last_is_gone_on_from(original):
    paths = [str(original / f"model.ckpt-{step}") for step in range(1, 6)]
    tf.train.update_checkpoint_state(str(original), paths[2], paths)
    assert train_on(original, num_saves=1, keep_checkpoints=1) == [4], "what is saved anew is no old one"


@pytest.mark.promises("own-checkpoints")
def test_a_checkpoint_that_no_run_has_named_is_never_deleted(original):
    for path in original.glob("model.ckpt-3.*"):
        shutil.copy(path, original / path.name.replace("model.ckpt-3", "best"))
    tf.train.update_checkpoint_state(str(original), "best", ["best"])
    train_on(original, num_saves=3, keep_checkpoints=1)
    assert len(list(original.glob("best.*"))) == 2


@pytest.mark.promises("not-finite")
@pytest.mark.parametrize(("value", "is_state"), [(np.nan, False), (np.inf, False), (np.nan, True)])
@pytest.mark.parametrize("partitioner", [None, tf.fixed_size_partitioner(2)])
def test_what_is_not_finite_is_not_saved_and_the_last_checkpoint_stays(original, value, is_state, partitioner):
    of_model = [tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.MODEL_VARIABLES]
    masks = [*[np.full([2], -np.inf, np.float32)] * 2, np.float32([np.nan])]
    for mask, keys in zip(masks, [of_model, None, None], strict=True):
        tf.Variable(mask, trainable=False, collections=keys, name="mask")
    keys = of_model if is_state else None
    first = tf.zeros_initializer()
    weights = tf.get_variable("w", [4], None, first, None, not is_state, keys, partitioner=partitioner)
    saver = make_saver(CHIEF, "ps", 1)
    hook = checkpoint_hook.CheckpointHook(
        CHIEF, RunFolder(original), tf.train.Scaffold(saver=saver), save_secs=60, train_steps=100
    )
    step = tf.train.get_global_step()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        step.load(6, session)
        hook.save(session)
        files = sorted(original.iterdir())
        assert checkpoints.is_saved(RunFolder(original), 6), (
            "state may be infinite, and what is neither may have what it likes"
        )
        step.load(7, session)
        (list(weights)[-1] if partitioner else weights).load([0, value] if partitioner else [0, 0, 0, value], session)
        with pytest.raises(UnusableError, match=r"^global step 7 is not saved, since w is not finite: lower --learn"):
            hook.save(session)
    assert sorted(original.iterdir()) == files


def test_what_a_process_that_was_ended_has_left_is_removed_at_the_next_start(start, tmp_path):
    (tmp_path / "train" / "model.ckpt-7_temp").mkdir()
    session, _, _ = start(save_secs=60)
    with session:
        assert not list((tmp_path / "train").glob("*_temp"))


def test_what_a_failed_attempt_leaves_behind_is_removed(tmp_path):
    path = save(tmp_path, {"w": [3, 2]})
    files = set(tmp_path.iterdir())
    (tmp_path / "model.ckpt-7_temp").mkdir()
    (tmp_path / "model.ckpt-7_temp" / "part-00000-of-00002.index").touch()
    (tmp_path / "model.ckpt-7.data-00000-of-00001.tempstate123").touch()
    checkpoint_hook.remove_unfinished(RunFolder(tmp_path))
    assert set(tmp_path.iterdir()) == files
    assert tf.train.list_variables(path)


@contextlib.contextmanager
def away(folder):
    """Put a file in the place of a folder, in which nothing can be written then."""
    elsewhere = folder.rename(folder.with_name("elsewhere"))
    folder.touch()
    yield
    folder.unlink()
    elsewhere.rename(folder)


@pytest.fixture
def start(graph, tmp_path):
    """Start to train, one step a run, with checkpoints; the result is the session, what takes a step, and the hook."""

    def start(save_secs):
        train = tf.train.create_global_step().assign_add(1)
        scaffold = tf.train.Scaffold(saver=tf.train.Saver())
        hook = checkpoint_hook.CheckpointHook(
            CHIEF, RunFolder(tmp_path / "train"), scaffold, save_secs, train_steps=100
        )
        return tf.train.MonitoredSession(tf.train.ChiefSessionCreator(scaffold), [hook]), train, hook

    (tmp_path / "train").mkdir()
    return start


def last_checkpoint(tmp_path):
    return os.path.basename(tf.train.latest_checkpoint(tmp_path / "train"))


@pytest.mark.promises("when-saved", "unwritable-checkpoint")
def test_a_checkpoint_that_fails_is_known_until_one_succeeds(start, tmp_path, caplog):
    session, train, hook = start(save_secs=1e-6)
    with session:
        session.run(train)
        assert (hook.failure, last_checkpoint(tmp_path)) == ("", "model.ckpt-1")
        with away(tmp_path / "train"):
            session.run(train)
            assert "train" in hook.failure
            assert f"the model of global step 2 could not be saved in {tmp_path}/train: " in caplog.text
        session.run(train)
        assert (hook.failure, last_checkpoint(tmp_path)) == ("", "model.ckpt-3")


@pytest.mark.parametrize("kind", [tf.errors.AbortedError, tf.errors.UnavailableError, tf.errors.UnknownError])
@pytest.mark.parametrize("step", [0, 1])
def test_a_file_server_that_fails_for_a_moment_costs_no_session(start, tmp_path, monkeypatch, caplog, kind, step):
    save, attempts = tf.train.Saver.save, []

    def save_or_fail(*arguments, **others):
        attempts.append("save")
        if len(attempts) == step + 1:
            raise kind(None, None, "Stale file handle")
        return save(*arguments, **others)

    monkeypatch.setattr(tf.train.Saver, "save", save_or_fail)
    session, train, hook = start(save_secs=1e-6)
    with session:
        first_session = session._tf_sess()
        session.run(train)
        assert bool(hook.failure) == bool(step)
        session.run(train)
        assert (hook.failure, last_checkpoint(tmp_path)) == ("", "model.ckpt-2")
        assert session._tf_sess() is first_session
    line = f"the model of global step {step} could not be saved in {tmp_path}/train: {kind.__name__}: Stale file handle"
    assert caplog.text.count(line) == 1


def test_a_checkpoint_that_could_not_be_named_is_deleted_in_its_turn(start, tmp_path):
    session, train, hook = start(save_secs=1e-6)
    state, away = tmp_path / "train" / "checkpoint", tmp_path / "away"
    hook._scaffold.saver.saver_def.max_to_keep = 2
    with session:
        session.run(train)
        state.rename(away)
        state.mkdir()
        session.run(train)
        assert "checkpoint" in hook.failure
        state.rmdir()
        away.rename(state)
        assert (last_checkpoint(tmp_path), steps_in(tmp_path / "train")) == ("model.ckpt-1", [0, 1, 2])
        session.run(train)
        assert (last_checkpoint(tmp_path), steps_in(tmp_path / "train")) == ("model.ckpt-3", [2, 3])
        session.run(train)
        assert steps_in(tmp_path / "train") == [3, 4]


def test_an_old_checkpoint_that_cannot_be_deleted_is_told_and_no_other_stays_for_it(start, tmp_path, caplog):
    session, train, hook = start(save_secs=1e-6)
    hook._scaffold.saver.saver_def.max_to_keep = 1
    with session:
        session.run(train)
        index = tmp_path / "train" / "model.ckpt-1.index"
        index.unlink()
        (index / "content").mkdir(parents=True)  # as root, a test may delete whatever is a file
        for _ in range(2):
            session.run(train)
        assert steps_in(tmp_path / "train") == [1, 3]
        assert caplog.text.count(f"{tmp_path}/train/model.ckpt-1 cannot be deleted (") == 1
        (index / "content").rmdir()
        index.rmdir()
        index.touch()
        session.run(train)
    assert steps_in(tmp_path / "train") == [4]


def test_a_file_server_that_does_not_say_whether_there_is_a_checkpoint_is_no_reason_to_begin_anew(tmp_path):
    (tmp_path / "checkpoint").symlink_to("checkpoint")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        checkpoints.find_last_checkpoint(RunFolder(tmp_path))


@pytest.mark.promises("when-saved")
def test_a_last_step_that_could_not_be_saved_is_saved_at_the_end(start, tmp_path):
    session, train, _ = start(save_secs=1e-6)
    with session:
        with away(tmp_path / "train"):
            session.run(train)
        assert last_checkpoint(tmp_path) == "model.ckpt-0"
    assert last_checkpoint(tmp_path) == "model.ckpt-1"


@pytest.mark.promises("when-saved")
@pytest.mark.parametrize("train_steps", [2, 100], ids=["over", "good enough"])
def test_the_last_step_is_saved_once_no_other_worker_is_on_its_way(graph, tmp_path, train_steps):
    class GoodEnough(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            if run_context.session.run(tf.train.get_global_step()) == 2:
                run_context.request_stop()

    counted = tf.train.create_global_step().assign_add(1)  # on one ps, before another has what the step brings
    model = tf.get_variable("weights", [], initializer=tf.zeros_initializer())
    scaffold = tf.train.Scaffold(saver=tf.train.Saver())
    hook = checkpoint_hook.CheckpointHook(CHIEF, RunFolder(tmp_path), scaffold, save_secs=1e-6, train_steps=train_steps)
    hooks = [GoodEnough(), hook] if train_steps > 2 else [hook]
    with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(scaffold), hooks) as session:
        for _ in range(2):
            session.run(counted)
        assert steps_in(tmp_path) == [0, 1]
        model.load(7.0, session._tf_sess())
    path = tf.train.latest_checkpoint(tmp_path)
    assert (path, tf.train.load_variable(path, "weights")) == (f"{tmp_path}/model.ckpt-2", 7)


def test_a_new_model_that_cannot_be_saved_is_refused(start, tmp_path):
    with (
        away(tmp_path / "train"),
        pytest.raises(
            UnusableError,
            match=r"no checkpoint can be written to --train_dir .*; create the folder again, here and on each ps",
        ),
    ):
        start(save_secs=60)


@pytest.mark.parametrize(("task", "train_dir"), [(CHIEF, ""), (OTHER, "a")])
def test_nothing_is_saved_without_a_train_dir_or_by_another_worker_than_the_chief(graph, task, train_dir):
    assert not checkpoint_hook.CheckpointHook(task, RunFolder(train_dir), tf.train.Scaffold(), 60, 100).is_needed


def test_the_chief_makes_the_train_dir_and_the_others_do_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_train_dir(OTHER, "a/b").path == f"{tmp_path}/a/b"
    assert not (tmp_path / "a").exists()
    assert open_train_dir(CHIEF, "a/b").path == f"{tmp_path}/a/b"
    assert list((tmp_path / "a").iterdir()) == [tmp_path / "a" / "b"]
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == ["chief.lock", "events"]


@pytest.mark.promises("folder-in-use")
def test_a_train_dir_in_use_by_another_job_is_refused(tmp_path):
    lock = tmp_path / "chief.lock"
    with open(lock, "w") as file:
        file.write("process 7 on host.example\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UnusableError) as error:
            open_train_dir(CHIEF, str(tmp_path))
        assert str(error.value) == (
            f"--train_dir {tmp_path} is in use by another job, whose chief is process 7 on host.example: end that job,"
            " or give another --train_dir"
        )
        assert lock.read_text() == "process 7 on host.example\n"
        assert list(tmp_path.iterdir()) == [lock], "nothing is touched"
    open_train_dir(CHIEF, str(tmp_path))
    assert lock.read_text().startswith(f"process {os.getpid()} on "), "a lock ends with its process"


def test_the_lock_of_an_earlier_chief_is_waited_for_whose_host_may_be_gone(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    with open(tmp_path / "chief.lock", "w") as file:
        file.write(f"process 7 on host.example\nuuid\n{HostLists.of(CHIEF).digest_of(CHIEF)}\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        waits = f"process 7 on host.example, an earlier chief of this cluster, to release --train_dir {tmp_path}"
        with monkeypatch.context() as short:
            short.setattr(train_dir, "LEASE_SECS", 0.1)
            with pytest.raises(UnusableError, match=f"worker 0 waited 0 s for {waits}: end that process"):
                open_train_dir(CHIEF, str(tmp_path))
        with concurrent.futures.ThreadPoolExecutor() as pool:
            opening = pool.submit(open_train_dir, CHIEF, str(tmp_path))
            poll_for(lambda: caplog.text.count(f"waiting for {waits}") == 2, "wait")
            fcntl.flock(file, fcntl.LOCK_UN)
            assert opening.result().path == str(tmp_path)


@pytest.mark.promises("no-locks")
def test_a_train_dir_that_cannot_be_locked_is_reported(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert open_train_dir(CHIEF, str(tmp_path)).path == str(tmp_path)
    assert f"--train_dir {tmp_path} cannot be locked (No locks available): let no other job use it" in caplog.text


def test_a_train_dir_that_was_made_again_is_locked_again_unless_another_job_has_it(tmp_path, caplog):
    folder = open_train_dir(CHIEF, str(tmp_path / "train"))
    train_dir.keep_locked(folder)
    assert not caplog.text
    shutil.rmtree(folder.path)
    train_dir.keep_locked(folder)
    assert not os.path.exists(folder.path), "who writes there says that it is gone"
    os.mkdir(folder.path)
    train_dir.keep_locked(folder)
    assert "is another folder than when this run began" in caplog.text
    with open(folder.lock) as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.remove(folder.lock)
    with open(folder.lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for write in (train_dir.keep_locked, Result({"test_loss": 1.0}, 1.0, 1.0, {}).write):
            with pytest.raises(UnsavedError, match="is in use by another job, whose chief is"):
                write(folder)
    assert not os.path.exists(folder.result)


def test_a_train_dir_in_which_another_run_has_left_its_model_is_not_written(tmp_path):
    other, own = (open_train_dir(CHIEF, str(tmp_path / name)) for name in ("other", "own"))
    for folder in (other, own):
        pathlib.Path(folder.checkpoint_state).write_text(f"of {folder.path}")
    os.rename(own.path, f"{own.path}.old")
    os.symlink(other.path, own.path)
    for write in (train_dir.keep_locked, Result({"test_loss": 1.0}, 1.0, 1.0, {}).write):
        with pytest.raises(UnsavedError, match="/own now has the model of another run: move that somewhere else"):
            write(own)
    assert not os.path.exists(other.result)
    os.remove(own.path)
    shutil.copytree(f"{own.path}.old", own.path)
    train_dir.keep_locked(own)  # it has put a copy of its own folder there
    os.remove(own.lock)
    train_dir.keep_locked(own)


def test_what_is_in_the_way_of_a_result_is_told_before_training(tmp_path):
    (tmp_path / "result.json").mkdir()
    with pytest.raises(UnusableError, match=r"/result\.json is a folder, but this run writes a file there: remove it"):
        open_train_dir(CHIEF, str(tmp_path))


def test_a_train_dir_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UnusableError, match="file/train cannot be written: Not a directory"):
        open_train_dir(CHIEF, str(tmp_path / "file" / "train"))
    (tmp_path / "train" / "chief.lock").mkdir(parents=True)
    with pytest.raises(UnusableError, match=r"train/chief\.lock cannot be written: Is a directory; give another one"):
        open_train_dir(CHIEF, str(tmp_path / "train"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "events").touch()
    with pytest.raises(UnusableError, match=r"other/events cannot be written: File exists; give another one"):
        open_train_dir(CHIEF, str(tmp_path / "other"))
    with pytest.raises(UnusableError, match=r"--train_dir .*/file is a file, expected a folder"):
        open_train_dir(CHIEF, str(tmp_path / "file"))
    (tmp_path / "link").symlink_to(tmp_path / "unmounted")
    with pytest.raises(UnusableError, match=r"--train_dir .*/link is a link to nothing, expected a folder"):
        open_train_dir(CHIEF, str(tmp_path / "link"))


def test_without_a_train_dir_the_chief_says_that_nothing_is_saved(caplog):
    assert open_train_dir(OTHER, "").path == ""
    assert caplog.text == ""
    assert open_train_dir(CHIEF, "").path == ""
    assert "nothing is saved, since --train_dir is not given" in caplog.text
