"""What evaluations leave behind, and when a run is finished."""

import json

import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import poll_for
from runtime.cluster.roll_call import REACHED, TRAINED, TRAINING, RollCall
from runtime.cluster.task import Task
from runtime.cluster.waiting import Timeouts
from runtime.session.evaluation import EvaluationHook, EvaluationLog, Measures
from runtime.session.evaluator import follow_checkpoints
from runtime.session.result import Goal, is_finished
from runtime.session.stopping import StopWithChiefHook

CHIEF = Task("worker", 0, ("a:1",), ("b:2",))
EVALUATOR = Task("evaluator", 0, ("a:1",), ("b:2",))
MEASURES = Measures(loss=0.25, accuracy=0.9375, global_step=40, parameters={}, find_mistakes=dict)


def test_each_evaluation_is_a_line_of_a_file_that_several_tasks_write(tmp_path):
    chief, evaluator = (EvaluationLog(task, str(tmp_path)) for task in (CHIEF, EVALUATOR))
    assert evaluator.read_steps() == set(), "there is no file yet"
    chief.write(MEASURES)
    evaluator.write(MEASURES._replace(global_step=50))
    entries = [json.loads(line) for line in (tmp_path / "eval.jsonl").read_text().splitlines()]
    assert [(entry["task"], entry["global_step"]) for entry in entries] == [("worker 0", 40), ("evaluator 0", 50)]
    assert entries[0]["test_accuracy"] == 0.9375
    assert entries[0]["test_loss"] == 0.25
    assert evaluator.read_steps() == {50}


def test_a_line_that_was_cut_off_costs_no_other(tmp_path):
    log = EvaluationLog(EVALUATOR, str(tmp_path))
    log.write(MEASURES)
    with open(tmp_path / "eval.jsonl", "a") as file:
        file.write('{"global_step": 50, "te')
    log.write(MEASURES._replace(global_step=60))
    assert log.read_steps() == {40, 60}


def test_a_folder_that_cannot_be_written_costs_only_the_entry(tmp_path, caplog):
    (tmp_path / "eval.jsonl").mkdir()
    EvaluationLog(CHIEF, str(tmp_path)).write(MEASURES)
    assert "the evaluation cannot be written" in caplog.text


@pytest.mark.parametrize(
    ("result", "finished"),
    [
        ('{"global_step": 100, "reached_accuracy": null}', True),
        ('{"global_step": 99, "reached_accuracy": 0.8}', False),
        ('{"global_step": 99, "reached_accuracy": 0.9}', True),
        ('{"global_step": 99}', False),
        ("", False),
    ],
)
def test_a_run_is_finished_when_its_result_has_reached_the_goal(tmp_path, leave_checkpoint, result, finished):
    (tmp_path / "result.json").write_text(result)
    goal = Goal(train_steps=100, test_accuracy=0.9)
    global_step = json.loads(result or '{"global_step": 100}')["global_step"]
    leave_checkpoint(global_step)
    assert is_finished(str(tmp_path), goal) == finished
    leave_checkpoint(global_step - 1)
    assert not is_finished(str(tmp_path), goal), "the model of this result could not be saved, or another run has begun"
    assert not is_finished("", Goal(100, 0.9)), "without a folder, nobody knows"


def test_an_evaluator_that_is_started_again_waits_as_long_as_one_that_was_not(tmp_path, leave_checkpoint):
    EvaluationLog(EVALUATOR, str(tmp_path)).write(MEASURES)
    leave_checkpoint(MEASURES.global_step)  # which it has evaluated
    with tf.Graph().as_default():
        tf.get_variable("weights", [])
        timeouts = Timeouts(startup_secs=0, recovery_secs=1)
        with pytest.raises(TimeoutError, match=r"waited 1 s for a checkpoint after global step 40 in "):
            follow_checkpoints(EVALUATOR, lambda _: MEASURES, str(tmp_path), Goal(100, None), timeouts)


@pytest.mark.parametrize("last_word", [REACHED, TRAINED])
def test_a_chief_that_died_after_its_goal_takes_no_more_steps(local_servers, last_word):
    servers = local_servers(1, 2)
    with tf.Graph().as_default() as graph:
        roll_call = RollCall(servers.task("worker", 0))
    with servers.worker_session(0, graph) as session:
        hook = EvaluationHook(CHIEF, lambda _: MEASURES, "", roll_call, every_secs=None, stop_at_accuracy=0.9)
        for is_said in (False, True):
            if is_said:
                roll_call.say(session, last_word)
            coord = tf.train.Coordinator()
            hook.after_create_session(session, coord)
            assert coord.should_stop() == is_said


@pytest.mark.parametrize(("word", "is_over"), [(TRAINING, False), (REACHED, True), (TRAINED, True)])
def test_a_worker_that_comes_after_the_chief_has_stopped_takes_no_step(local_servers, word, is_over):
    servers = local_servers(1, 2)
    graphs = [tf.Graph(), tf.Graph()]
    roll_calls = []
    for index, graph in enumerate(graphs):
        with graph.as_default():
            roll_calls.append(RollCall(servers.task("worker", index)))
    with servers.worker_session(0, graphs[0]) as session:
        roll_calls[0].say(session, word)
    with servers.worker_session(1, graphs[1]) as session:
        coord = tf.train.Coordinator()
        hook = StopWithChiefHook(servers.task("worker", 1), roll_calls[1], stop_at_accuracy=0.9)
        hook.after_create_session(session, coord)
        assert coord.should_stop() == is_over
        coord.request_stop()


def test_any_accuracy_reaches_the_goal_of_0(local_servers):
    servers = local_servers(1, 1)
    with tf.Graph().as_default() as graph:
        roll_call = RollCall(servers.task("worker", 0))
        tf.train.create_global_step()
        initialize = tf.global_variables_initializer()
    with servers.worker_session(0, graph) as session:
        session.run(initialize)
        hook = EvaluationHook(CHIEF, lambda _: MEASURES, "", roll_call, every_secs=0.1, stop_at_accuracy=0.0)
        hook.after_create_session(session, tf.train.Coordinator())
        context = tf.train.SessionRunContext(None, session)

        def is_stopped():
            hook.after_run(context, None)
            return context.stop_requested

        poll_for(is_stopped, "an evaluation")
