import pytest
import tensorflow.compat.v1 as tf

from runtime.cluster.task import Task
from runtime.session import checkpoints


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
    checkpoints.check_last_checkpoint(str(tmp_path))


def test_without_a_checkpoint_there_is_nothing_to_check(model, tmp_path):
    checkpoints.check_last_checkpoint(str(tmp_path))
    checkpoints.check_last_checkpoint("")


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
    with pytest.raises(checkpoints.CheckpointError) as error:
        checkpoints.check_last_checkpoint(str(tmp_path))
    assert str(error.value) == f"{path} {message}: give the flags that it was made with, or another --train_dir"


def test_a_broken_checkpoint_is_refused(model, tmp_path):
    path = save(tmp_path, {"w": [3, 2], "steps": []})
    with open(path + ".index", "r+b") as file:
        file.truncate(10)
    with pytest.raises(checkpoints.CheckpointError) as error:
        checkpoints.check_last_checkpoint(str(tmp_path))
    assert str(error.value).startswith(f"{path} cannot be read (")
    assert f"name an older one in {tmp_path}/checkpoint, or give another --train_dir" in str(error.value)


@pytest.mark.parametrize(("index", "train_dir"), [(0, ""), (1, "a")])
def test_nothing_is_saved_without_a_train_dir_or_by_another_worker_than_the_chief(graph, index, train_dir):
    task = Task("worker", index, ("a:1",), ("b:2", "c:3"))
    assert checkpoints.make_saving_hooks(task, train_dir, tf.train.Scaffold(), 60, 2) == []
