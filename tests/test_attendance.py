"""When workers wait for each other, on real servers."""

import json
import threading

import pytest
import tensorflow.compat.v1 as tf

from runtime.cluster import agreement, status, table
from runtime.cluster.board import TRAINED, TRAINING, Record
from runtime.cluster.membership import Membership
from runtime.cluster.status import Status
from runtime.cluster.table import Table
from runtime.cluster.task import Task
from runtime.cluster.waiting import Timeouts
from runtime.session import attendance
from runtime.session.attendance import AttendanceHook, WaitForWorkersHook


def test_the_chief_ends_when_the_others_have_trained_but_not_before(local_servers, monkeypatch):
    monkeypatch.setattr(attendance, "GRACE_SECS", 0.1)
    servers = local_servers(1, 3)
    chief, other = (servers.membership("worker", index) for index in range(2))  # worker 2 never comes
    other.board.say(TRAINING)
    ending = threading.Thread(target=WaitForWorkersHook(chief).end, args=(None,), daemon=True)
    ending.start()
    ending.join(0.5)
    assert ending.is_alive()
    other.board.say(TRAINED)
    ending.join(60)
    assert not ending.is_alive()


def test_a_worker_whose_address_another_cluster_uses_is_not_waited_for(local_servers, monkeypatch):
    def end(code, message, tell):
        raise SystemExit(code, message)

    monkeypatch.setattr(agreement, "end_process", end)
    servers = local_servers(1, 3)
    hook = AttendanceHook(servers.membership("worker", 0), wait_for_all=True)
    assert hook._describe_absent().count("(still starting)") == 2
    address = servers.worker_hosts[1]
    Membership(Task("worker", 1, ("other:1",), ("more:1", address)), Timeouts(60, 60)).agreement.publish()
    hook._compared.clear()
    with pytest.raises(SystemExit) as ended:
        hook._describe_absent()
    line = f"worker 0 expects worker 1 at {address}, but that address is used by another cluster, that of worker 1 with"
    assert ended.value.args[0] == 2
    assert ended.value.args[1].startswith(line)


@pytest.mark.promises("last-wait")
def test_the_chief_does_not_wait_for_a_dead_worker_for_ever(local_servers, monkeypatch, caplog):
    monkeypatch.setattr(attendance, "GRACE_SECS", 0.1)
    monkeypatch.setattr(status, "ask", lambda _: Status(reason="connection refused"))  # a server here cannot be stopped
    servers = local_servers(1, 2)
    servers.membership("worker", 1).board.say(TRAINING)
    WaitForWorkersHook(servers.membership("worker", 0)).end(None)
    gone = f"worker 1 at {servers.worker_hosts[1]}"
    assert f"worker 0: ending without {gone}, which has not taken its last step" in caplog.text


@pytest.mark.slow
@pytest.mark.promises("last-wait")
def test_the_chief_waits_for_a_slow_worker_that_answers(local_servers, monkeypatch):
    monkeypatch.setattr(attendance, "GRACE_SECS", 0.1)
    servers = local_servers(1, 2)
    chief, slow = (servers.membership("worker", index) for index in range(2))
    slow.board.say(TRAINING)
    ending = threading.Thread(target=WaitForWorkersHook(chief).end, args=(None,), daemon=True)
    ending.start()
    ending.join(2)
    assert ending.is_alive(), "its grace is over, but it still answers"
    slow.board.say(TRAINED)
    ending.join(60)
    assert not ending.is_alive()


@pytest.mark.promises("last-wait")
def test_the_chief_waits_for_a_worker_that_has_not_begun_but_answers(local_servers, monkeypatch):
    monkeypatch.setattr(attendance, "GRACE_SECS", 1e6)
    servers = local_servers(1, 2)
    chief, late = (servers.membership("worker", index, recovery_secs=1e6) for index in range(2))

    def start_to_end():
        chief.board.say(TRAINING)
        ending = threading.Thread(target=WaitForWorkersHook(chief).end, args=(None,), daemon=True)
        ending.start()
        return ending

    ending = start_to_end()
    ending.join(1)
    assert ending.is_alive()
    late.board.say(TRAINED)
    ending.join(60)
    assert not ending.is_alive()
    late.board.say("")
    monkeypatch.setattr(status, "ask", lambda _: Status(reason="connection refused"))
    ending = start_to_end()
    ending.join(60)
    assert not ending.is_alive(), "nobody waits for one that is not there"


def test_the_chief_does_not_wait_for_who_came_in_the_place_of_a_worker_that_trained(local_servers, monkeypatch, caplog):
    """However fast that was, and however long it reads its data."""
    monkeypatch.setattr(attendance, "GRACE_SECS", 0.1)
    servers = local_servers(1, 2)
    Table(servers.ps_hosts[0]).write({1: json.dumps(Record(TRAINING, "of the process before"))})
    WaitForWorkersHook(servers.membership("worker", 0, recovery_secs=1e6)).end(None)
    assert f"ending without worker 1 at {servers.worker_hosts[1]}" in caplog.text


def test_the_chief_says_who_never_took_part(local_servers, monkeypatch, caplog):
    monkeypatch.setattr(attendance, "GRACE_SECS", 0.1)
    servers = local_servers(1, 2)
    hook = WaitForWorkersHook(servers.membership("worker", 0))
    hook.end(None)
    assert not caplog.text, "nothing was left to train: it may only be slower"
    hook.after_run(None, None)
    hook.end(None)
    assert f"worker 0: worker 1 at {servers.worker_hosts[1]} never took part" in caplog.text


class Chief:
    """The chief of a synchronous cluster, with a global step on the ps."""

    def __init__(self, servers, step):
        self._connection, self._graph = servers.connection("worker", 0), tf.Graph()
        with self._graph.as_default(), tf.device("/job:ps/task:0"):
            assign = tf.train.create_global_step().assign(step)
        self.hook = AttendanceHook(servers.membership("worker", 0, startup_secs=0.2), wait_for_all=True)
        with self._connection.session(self._graph) as session:
            session.run(assign)

    def start(self, coord=None):
        with self._connection.session(self._graph) as session:
            self.hook.after_create_session(session, coord or tf.train.Coordinator())


def test_a_new_synchronous_model_is_not_trained_before_all_workers_are_there(local_servers):
    servers = local_servers(1, 2)
    awaited = rf"waited 0 s for worker 1 at {servers.worker_hosts[1]} \(still starting\): start each missing"
    with pytest.raises(TimeoutError, match=awaited):
        Chief(servers, step=0).start()


def test_a_synchronous_model_that_has_trained_goes_on_without_who_does_not_come_back(local_servers, caplog):
    servers = local_servers(1, 2)
    Chief(servers, step=5).start()
    assert f"waited 0 s for worker 1 at {servers.worker_hosts[1]} (still starting): training goes on" in caplog.text


def test_workers_that_have_trained_and_left_are_not_waited_for_when_the_first_checkpoint_is_restored(
    local_servers, monkeypatch, caplog
):
    servers = local_servers(1, 2)
    servers.membership("worker", 1).board.say(TRAINING)
    chief = Chief(servers, step=0)
    chief.start()
    assert "training goes on" not in caplog.text
    monkeypatch.setattr(status, "ask", lambda _: Status(reason="connection refused"))
    chief.start()
    assert f"worker 1 at {servers.worker_hosts[1]} (connection refused): training goes on" in caplog.text
    caplog.clear()
    coord = tf.train.Coordinator()
    coord.request_stop()  # as of a model that has reached its goal
    chief.start(coord)
    assert not caplog.text


def test_the_record_of_an_earlier_process_does_not_count(local_servers, caplog):
    servers = local_servers(1, 2)
    Table(servers.ps_hosts[0]).write({1: json.dumps(Record(TRAINING, "1"))})  # another one answers
    Chief(servers, step=5).start()
    assert f"waited 0 s for worker 1 at {servers.worker_hosts[1]} (still starting): training goes on" in caplog.text
    servers.membership("worker", 1).board.say(TRAINING)
    caplog.clear()
    Chief(servers, step=5).start()
    assert "waited" not in caplog.text


@pytest.mark.parametrize("index", [0, 1])
def test_a_worker_that_has_trained_ends_well_though_a_ps_is_lost_before_it_says_so(local_servers, monkeypatch, index):
    member = local_servers(1, 2).membership("worker", index)

    def lose_ps(*_):  # a server here cannot be stopped
        raise tf.errors.UnavailableError(None, None, "recvmsg:Connection reset by peer")

    monkeypatch.setattr(member.board, "say", lose_ps)
    monkeypatch.setattr(status, "ask", lambda _: Status(reason="connection refused"))
    hook = AttendanceHook(member, wait_for_all=False)
    if index == 0:  # the chief has a model to evaluate
        with pytest.raises(tf.errors.UnavailableError):
            hook.end(None)
    else:
        hook.end(None)


def test_the_chief_ends_well_though_a_ps_is_silent_for_a_while(local_servers, monkeypatch):
    """Its process is stopped, say, or its link is cut."""
    servers = local_servers(1, 2)
    chief, other = (servers.membership("worker", index) for index in range(2))
    other.board.say(TRAINED)
    asked, ask = threading.Event(), status.ask

    def find_silence(_):  # a server here cannot be stopped
        asked.set()
        return Status(reason="no answer")

    monkeypatch.setattr(status, "ask", find_silence)
    monkeypatch.setattr(table, "ask", find_silence)

    def end():
        WaitForWorkersHook(chief).end(None)
        AttendanceHook(chief, wait_for_all=False).end(None)

    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    assert asked.wait(60)
    ending.join(1)
    assert ending.is_alive()
    monkeypatch.setattr(status, "ask", ask)
    monkeypatch.setattr(table, "ask", ask)
    ending.join(60)
    assert [record.state for record in other.board.records()] == [TRAINED, TRAINED]
