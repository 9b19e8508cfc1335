"""Who is there, what the tasks tell each other, and when one ends with the others: on real servers."""

import json
import queue
import re
import signal
import threading
import types

import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed.processes import DEADLINE_SECS, poll_for
from runtime.cluster import agreement, board, departure, membership, status, table
from runtime.cluster.agreement import Agreement
from runtime.cluster.board import EVALUATED, STOPPED, TRAINED, TRAINING, Record
from runtime.cluster.departure import Departure
from runtime.cluster.host_lists import HostLists
from runtime.cluster.membership import Membership
from runtime.cluster.status import Status, ask
from runtime.cluster.table import ABORT_REASON, DIGEST, IS_TRAINING, Table
from runtime.cluster.task import Task
from runtime.cluster.waiting import Timeouts
from runtime.launch.ports import choose_ports
from runtime.machine.session_config import make_server_config, make_session_config
from runtime.process.errors import AwayError, UnusableError
from tests.models import make_model

PS = ("a:1", "b:2")
WORKERS = ("c:3", "d:4", "e:5")
STARTED = []  # members, whose threads end with their test


# Those that a task needs.

FIRST, ANOTHER, BUSY = Status("1"), Status("2"), Status()
REFUSED, SILENT = Status(reason="connection refused"), Status(reason="no answer")


@pytest.mark.promises("silent-is-not-dead")
@pytest.mark.parametrize(
    ("looks", "ended"),
    [
        ([FIRST], ""),
        ([SILENT, SILENT, FIRST], ""),  # its link was cut
        ([BUSY], ""),
        ([REFUSED], "connection refused"),
        ([REFUSED, ANOTHER], "another process answers there"),
        ([SILENT, SILENT, ANOTHER], "another process answers there"),
        ([SILENT, BUSY, ANOTHER], "another process answers there"),
        ([ANOTHER], "another process answers there"),  # between two looks
    ],
)
def test_a_process_that_has_ended_is_told_from_a_link_that_is_cut(looks, ended):
    member = Membership(Task("worker", 0, PS[:1], WORKERS), Timeouts(300, 600))
    (ps,) = member.task.needed
    for second, found in enumerate([FIRST, *looks]):
        member._note_status(ps, found, float(second))
    assert member.ended_servers({ps: "1"}) == (ended and f"ps 0 at a:1 ({ended})")
    assert not (looks[-1] == ANOTHER and member.ended_servers({ps: "2"})), "its forerunner is not of that session"


@pytest.mark.parametrize(
    ("looks", "lost", "back"),
    [
        ([ANOTHER], "another process answers there", True),  # it has restarted faster than two looks
        ([REFUSED, ANOTHER], "another process answers there", True),
        ([REFUSED, BUSY, ANOTHER], "another process answers there", True),
        ([REFUSED, REFUSED, ANOTHER], "connection refused", True),
        ([REFUSED, REFUSED], "connection refused", False),
        ([BUSY, FIRST], "", False),
        ([REFUSED, FIRST], "", False),
    ],
)
def test_a_process_that_was_replaced_is_said_to_be_lost_once(looks, lost, back, caplog):
    caplog.set_level("INFO")
    member = Membership(Task("worker", 0, PS[:1], WORKERS), Timeouts(300, 600))
    (ps,) = member.task.needed
    for second, of_look in enumerate([FIRST, *looks, looks[-1]]):
        member._note_status(ps, of_look, float(second))
    said = [f"worker 0: lost ps 0 at a:1 ({lost})"] * bool(lost) + ["worker 0: ps 0 at a:1 is back"] * back
    assert caplog.messages == said


def test_two_looks_at_once_see_nobody_lost(caplog):
    """A task looks between its regular looks, too; at the end all leave together."""
    member = Membership(Task("worker", 0, PS[:1], WORKERS), Timeouts(300, 600))
    (ps,) = member.task.needed
    for status_, second in [(FIRST, 0.0), (REFUSED, 1.0), (REFUSED, 1.1)]:
        member._note_status(ps, status_, second)
    assert not caplog.messages
    member._note_status(ps, REFUSED, 2.0)
    assert caplog.messages == ["worker 0: lost ps 0 at a:1 (connection refused)"]


@pytest.mark.promises("recovery-timeout")
def test_a_task_that_gives_up_names_only_those_that_were_away_for_long(monkeypatch):
    """Others give up at the same time, and are away as well."""
    ends = []
    monkeypatch.setattr(membership, "end_process", lambda *end: ends.append(end))
    member = Membership(Task("worker", 1, PS, WORKERS), Timeouts(300, 20))
    for secs, missed_since in ((100.0, None), (100.0, 99.0), (100.0, 79.0)):
        for peer, since in zip(member._sightings, (missed_since, 99.0, 100.0), strict=True):
            member._note_status(peer, Status("1"), 0.0)
            if since:
                member._note_status(peer, SILENT, since)
        member._end_if_somebody_stays_away(secs)
    missing = "worker 1 waited 21 s for ps 0 at a:1 (no answer)"
    assert ends == [(1, f"{missing}: start the missing task, or correct --ps_hosts and --worker_hosts")]


@pytest.fixture
def always_logs(monkeypatch, caplog):
    """Log also what another test has just logged in the same line of the program."""
    caplog.set_level("INFO")

    def log(level, text, _, *values):
        membership.logging.log(level, text, *values)

    monkeypatch.setattr(membership.logging, "log_every_n_seconds", log)


@pytest.mark.promises("late-worker")
@pytest.mark.parametrize("job_name", ["ps", "worker"])
def test_a_task_that_is_started_again_after_the_end_gives_up_with_0(monkeypatch, always_logs, caplog, job_name):
    ends = []
    monkeypatch.setattr(membership, "end_process", lambda *end, is_error=True: ends.append((*end, is_error)))
    member = Membership(Task(job_name, 1, PS, WORKERS, "in_graph"), Timeouts(15, 20))
    member.describe_result = lambda: "nothing is left to do"
    for peer in member.task.needed:
        member._note_status(peer, SILENT, 100.0)
        member._sightings[peer].missed_since = 100.0
    member._end_if_somebody_stays_away(111.0)
    assert not ends
    assert f"{job_name} 1: waiting for " in caplog.text
    member._end_if_somebody_stays_away(116.0)
    status, told, is_error = ends[0]
    assert (status, is_error) == (0, False)
    assert told.startswith(f"{job_name} 1: nothing is left to do; missing: ")


@pytest.mark.promises("recovery-timeout")
def test_a_wait_for_a_busy_ps_is_logged_and_ends(monkeypatch, always_logs, caplog):
    ends = []
    monkeypatch.setattr(membership, "end_process", lambda *end: ends.append(end))
    member = Membership(Task("worker", 1, PS[:1], WORKERS), Timeouts(300, 20))
    (ps, _) = member.task.needed
    looks = [FIRST, BUSY, FIRST, *[BUSY] * 15, SILENT, *[BUSY] * 6]
    for secs, found in enumerate(looks, 100):
        member._note_status(ps, found, float(secs))
        member._note_status(member.task.needed[1], FIRST, float(secs))
        assert not ends
        member._end_if_somebody_stays_away(float(secs))
    told = "worker 1 waited 21 s for ps 0 at a:1 (it is busy): check what it computes or writes; restart it"
    assert ends == [(1, f"{told}, or raise --recovery_timeout_secs")]
    assert caplog.messages[:1] == ["worker 1: waiting for ps 0 at a:1 (busy for 11 s)"]


def test_who_waits_for_another_task_looks_less_often_as_time_goes_by(monkeypatch):
    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    looks = []
    monkeypatch.setattr(membership, "time", Clock())
    monkeypatch.setattr(membership, "statuses_of", lambda peers: looks.append(1) or dict.fromkeys(peers, REFUSED))
    member = Membership(Task("worker", 1, ("a:1",), ("b:2", "c:3")), Timeouts(300, 600))
    member.agreement.end_if_lists_differ = lambda: None
    for second in range(0, 300):
        Clock.now = second / 5
        member._end_if_this_cannot_go_on()
    assert 60 < len(looks) < 100, "looks in a minute"


# Host lists that differ, and input that one task cannot use.


# The threads of tasks that would end their process.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture
def ends(monkeypatch):
    """The statuses and messages of tasks that would end their process, as they come."""
    ends, before, is_over = queue.Queue(), len(STARTED), threading.Event()

    def end_thread(status, message, tell=None):
        if tell:
            tell(message)
        ends.put((status, message))
        is_over.wait()
        raise SystemExit  # ends the thread

    monkeypatch.setattr(agreement, "end_process", end_thread)
    monkeypatch.setattr(agreement, "TELLING_SECS", 0.0)  # the servers here stay anyway
    yield ends
    for member in STARTED[before:]:
        member._is_over.set()
    is_over.set()


def start(name, ps_hosts, worker_hosts, looks=True):
    """Start a server with its lists, and compare them with those of others."""
    job_name, index = name.split()
    task = Task(job_name, int(index), tuple(ps_hosts), tuple(worker_hosts))
    config = make_session_config(task)
    tf.train.Server(tf.train.ClusterSpec(task.jobs), job_name, task.index, config=make_server_config(config))
    member = Membership(task, Timeouts(300, 600))
    STARTED.append(member)
    member.agreement.publish()
    if looks:
        member.start()
    return member


def abort_reason(address):
    return Table(address).read(ABORT_REASON)[0]


def is_training(address):
    return bool(Table(address).read(IS_TRAINING)[0])


@pytest.mark.parametrize("wrong", ["worker 0", "worker 2"])
def test_a_list_that_differs_ends_every_task_though_not_all_find_each_other(ends, wrong):
    ps, *workers = (f"localhost:{port}" for port in choose_ports(4))
    start(wrong, ["localhost:1"], workers)
    for name in (name for name in ("worker 2", "worker 1", "worker 0", "ps 0") if name != wrong):
        start(name, [ps], workers)
    for _ in range(4):
        status, line = ends.get(timeout=DEADLINE_SECS)
        found = rf"\w+ \d was given {ps} as ps_hosts\[0\], but {wrong} was given localhost:1"
        found_by_wrong = rf"{wrong} was given localhost:1 as ps_hosts\[0\], but \w+ \d was given {ps}"
        assert re.fullmatch(f"({found}|{found_by_wrong}): give all tasks the same", line), line
        assert status == 2


def test_an_address_that_leads_to_another_task_of_the_cluster_ends_who_needs_it(ends):
    """As where a name of a host leads to another one of the cluster."""
    ps, other, worker = (f"localhost:{port}" for port in choose_ports(3))
    start("ps 0", [ps, other], [worker])
    member = start("worker 0", [ps, other], [worker], looks=False)
    ps_1 = member.task.servers[1]
    member.agreement._tables[ps_1] = Table(ps)
    threading.Thread(target=member.agreement.end_if_lists_differ, daemon=True).start()
    problem = f"worker 0 expects {ps_1}, but that address is used by ps 0 of this cluster: correct the host lists, or"
    assert ends.get(timeout=DEADLINE_SECS) == (2, f"{problem} how this host resolves that name")


def test_a_task_that_has_ended_has_told_the_others_why(ends):
    ps, *workers = (f"localhost:{port}" for port in choose_ports(3))
    start("ps 0", [ps], workers)
    start("worker 1", [ps], workers)
    start("worker 0", [ps], workers).agreement.tell_to_end("worker 0 has ended: there is no --data_dir")
    for _ in ("ps 0", "worker 1"):
        assert ends.get(timeout=DEADLINE_SECS) == (2, "worker 0 has ended: there is no --data_dir")
    assert ends.empty(), "the first is not told its own reason"


@pytest.mark.slow
def test_a_task_that_tells_the_others_does_not_say_its_own_reason_again(local_servers, monkeypatch):
    said = queue.SimpleQueue()
    monkeypatch.setattr(agreement, "end_process", lambda status, message, tell: said.put(message))
    worker = local_servers(1, 1).membership("worker", 0)
    worker.agreement.publish()
    worker.agreement.tell_to_end("worker 0 has ended: there is no --data_dir")
    looking = threading.Thread(target=worker.agreement.end_if_lists_differ, daemon=True)
    looking.start()
    looking.join(2)
    assert looking.is_alive(), "this process ends"
    assert said.empty()


def test_tasks_that_train_go_on_and_only_a_late_one_that_differs_ends(ends):
    ps, *workers = (f"localhost:{port}" for port in choose_ports(4))
    start("ps 0", [ps], workers)
    start("worker 0", [ps], workers).agreement.begin_training()
    assert is_training(ps)
    start("worker 1", [ps], workers[:2])
    missing = f"worker 1 was given nothing as worker_hosts[2], but ps 0 was given {workers[2]}: give all tasks the same"
    assert ends.get(timeout=DEADLINE_SECS) == (2, missing)
    last = start("worker 2", [ps], workers)
    poll_for(lambda: is_training(workers[2]), "news of the training")
    last.agreement.tell_to_end("worker 2 has ended: there is no --data_dir")
    assert [abort_reason(address) for address in (ps, workers[0])] == ["", ""], "they heard nothing"
    assert ends.empty()


def test_who_trains_keeps_no_session_open_that_nobody_needs(ends):
    ps, worker = (f"localhost:{port}" for port in choose_ports(2))
    start("ps 0", [ps], [worker], looks=False)
    agreed = start("worker 0", [ps], [worker], looks=False).agreement
    agreed.begin_training()
    assert [on._session for on in agreed._tables.values()] == [None, None]


def test_a_ps_whose_server_takes_nothing_at_first_publishes_its_lists_though_the_others_train(ends):
    *ps, worker = (f"localhost:{port}" for port in choose_ports(3))
    start("ps 0", ps, [worker])
    start("worker 0", ps, [worker]).agreement.begin_training()
    late = Membership(Task("ps", 1, tuple(ps), (worker,)), Timeouts(300, 600))  # without a server yet
    late.agreement.end_if_lists_differ()
    tf.train.Server(tf.train.ClusterSpec(late.task.jobs), "ps", 1)
    for _ in range(2):
        late.agreement.end_if_lists_differ()
    assert Table(ps[1]).read(DIGEST) == [late.agreement._lists.digest_of(late.task)]
    assert is_training(ps[1])


def test_a_worker_that_would_begin_to_train_ends_if_another_has_ended_before(ends):
    ps, *workers = (f"localhost:{port}" for port in choose_ports(3))
    start("ps 0", [ps], workers)
    chief = start("worker 0", [ps], workers, looks=False)
    Table(ps).write({ABORT_REASON: "worker 1 has ended: there is no --data_dir"})
    threading.Thread(target=chief.agreement.begin_training, daemon=True).start()
    for _ in ("ps 0", "worker 0"):
        assert ends.get(timeout=DEADLINE_SECS) == (2, "worker 1 has ended: there is no --data_dir")
    assert not is_training(ps)


def test_a_task_that_meets_another_cluster_ends_its_own_and_leaves_the_other_alone(ends):
    shared, ps, *workers = (f"localhost:{port}" for port in choose_ports(4))
    start("worker 0", ["localhost:1"], [shared, "localhost:2"])
    start("worker 1", [ps, shared], workers)
    start("ps 0", [ps, shared], workers)
    for _ in range(2):
        status, line = ends.get(timeout=DEADLINE_SECS)
        used = rf"\w+ \d expects ps 1 at {shared}, but that address is used by another cluster, that of worker 0 with"
        assert re.match(f"{used} localhost:1, {shared}, localhost:2: ", line), line
        assert status == 2
    assert abort_reason(shared) == ""
    assert ends.empty()


def test_a_name_that_leads_to_another_cluster_may_lead_home_a_little_later(monkeypatch, caplog):
    def end(status, why, _):
        raise SystemExit(f"{status}: {why}")

    monkeypatch.setattr(agreement, "end_process", end)

    def make_table(lists):  # the first question is for a digest, the second for the lists
        answers = iter([["another", "that other cluster must end", "yes"], [lists.write()]])
        return types.SimpleNamespace(read=lambda *_: next(answers), close=lambda: None)

    stranger = HostLists.of(Task("ps", 0, ("10.0.0.7:2222",), ("other:2222",)))
    used = (
        "expects ps 0 at {}, but that address is used by another cluster, that of ps 0 with 10.0.0.7:2222, other:2222"
    )
    for address, is_name in (("10.0.0.7:2222", False), ("localhost:2222", False), ("ps-0.jobs:2222", True)):
        task = Task("worker", 1, (address,), ("worker-0:2222", "worker-1:2222"))
        mine, other, (ps, _) = Agreement(task, {}), Agreement(task, {}), task.needed
        with pytest.raises(SystemExit, match="run the same version of this program everywhere"):
            other._heed(ps, other._read(ps, make_table(HostLists("ps 0", {}))))
        found = mine._read(ps, make_table(stranger))
        if is_name:
            assert not mine._heed(ps, found)
            assert f"worker 1 {used.format(ps.address)}" in caplog.text
            monkeypatch.setattr(agreement, "STRANGER_SECS", -1.0)
        with pytest.raises(SystemExit, match=f"2: worker 1 {used.format(address)}"):
            mine._heed(ps, found)
        assert not mine._is_training


# What workers must agree on.

SETTINGS = {"optimizer": "adam", "learning_rate": 0.001, "partition_bytes": None}


@pytest.mark.promises("same-flags")
def test_a_task_that_differs_from_the_chief_names_the_flag_and_both_values(local_servers):
    servers = local_servers(2, 2)
    chief, worker = (servers.membership("worker", index) for index in range(2))
    worker.agreement.check_flags({**SETTINGS, "optimizer": "sgd"})  # the chief has not published anything
    chief.agreement.check_flags(SETTINGS)
    for member in (chief, worker):
        member.agreement.check_flags(SETTINGS)
    with pytest.raises(UnusableError) as error:
        worker.agreement.check_flags({**SETTINGS, "optimizer": "sgd"})
    assert str(error.value) == (
        "worker 1 has --optimizer=sgd, but the model on the ps tasks is trained with --optimizer=adam: give all workers"
        " the same, or restart the ps tasks"
    )
    with pytest.raises(UnusableError, match=r"worker 0 has .* is trained with --learning_rate=0\.001"):
        chief.agreement.check_flags({**SETTINGS, "learning_rate": 0.01})


def test_who_has_other_files_than_the_chief_says_so_once_and_is_not_refused(local_servers, caplog):
    servers = local_servers(1, 2)
    servers.membership("worker", 0).agreement.check_flags({"model.py": 1, "mnist_input.py": 2, "seed": 3})
    worker = servers.membership("worker", 1)
    for _ in range(2):
        worker.agreement.check_flags({"model.py": 4, "mnist_input.py": 5, "seed": 3})
    told = "worker 1 has a different model.py and mnist_input.py than the model on the ps tasks is trained with: give"
    assert caplog.text.count(told) == 1


@pytest.mark.promises("same-data")
def test_other_data_may_be_the_same_in_another_order(local_servers):
    servers = local_servers(1, 2)
    servers.membership("worker", 0).agreement.check_flags({"data_dir": "(9 examples, CRC-32 00000001)"})
    with pytest.raises(UnusableError, match=r"all workers the same examples in the same order \(sort the files, seed"):
        servers.membership("worker", 1).agreement.check_flags({"data_dir": "(9 examples, CRC-32 00000002)"})


def test_who_has_traced_another_graph_is_told_the_first_variable_that_it_uses_otherwise(local_servers):
    servers, spec = local_servers(1, 2), tf.TensorSpec([1], tf.float32, "x")
    uses = [
        make_model(lambda x, _, by=by: x * tf.get_variable("w", [1]) * by, lambda x, _: tf.reduce_sum(x), spec).uses
        for by in (1.0, 1.0 + 1e-7, 2.0)
    ]
    for index, of_worker in enumerate(uses[:2]):
        servers.membership("worker", index).agreement.check_flags({agreement.USES: json.dumps(of_worker)})
    with pytest.raises(UnusableError, match=r"^worker 1 has a different graph than .*: it uses w differently"):
        servers.membership("worker", 1).agreement.check_flags({agreement.USES: json.dumps(uses[2])})


# Records.


def states(member):
    return [record.state for record in member.board.records()]


def test_what_a_worker_says_is_heard_by_every_ps_and_worker_and_stays(local_servers):
    servers = local_servers(2, 3)
    speaker, late = (servers.membership("worker", index) for index in (1, 2))
    assert states(speaker) == ["", "", ""], "nobody has said anything"
    speaker.board.say(TRAINING)
    for listener in (servers.membership("ps", 0), servers.membership("ps", 1), late):
        for _ in range(2):
            assert states(listener) == ["", "training", ""]
    late.board.say(TRAINED)
    assert states(speaker) == ["", "training", "trained"]


def test_what_was_said_before_a_ps_was_lost_counts_as_not_said(local_servers):
    servers = local_servers(2, 1)
    worker = servers.membership("worker", 0)
    Table(servers.ps_hosts[0]).write({0: json.dumps(Record(TRAINING, "1"))})  # ps 1 is new, and has not heard it
    assert states(worker) == [""]
    worker.board.say(TRAINING)
    assert states(worker) == ["training"]


def test_a_record_has_the_incarnation_of_the_process_that_wrote_it(local_servers):
    servers = local_servers(1, 2)
    servers.membership("worker", 1).board.say(TRAINING)
    _, record = servers.membership("ps", 0).board.records()
    incarnations = [ask(address).incarnation for address in servers.worker_hosts]
    assert record.incarnation == incarnations[1] != incarnations[0]


def test_a_record_is_not_written_before_its_process_is_known(local_servers, monkeypatch):
    worker = local_servers(1, 1).membership("worker", 0)
    with monkeypatch.context() as patch:
        patch.setattr(board, "ask", lambda _: BUSY)
        with pytest.raises(tf.errors.UnavailableError):
            worker.board.say(TRAINING)
    assert states(worker) == [""]
    worker.board.say(TRAINING)
    assert states(worker) == ["training"]


def test_a_table_is_read_again_after_its_session_was_closed_or_its_server_was_away(local_servers):
    servers = local_servers(1, 1)
    table = Table(servers.ps_hosts[0])
    table.write({7: "ä"})
    table.close()
    assert table.read(7, 8) == ["ä", ""]
    away = Table(f"localhost:{choose_ports(1)[0]}")
    with pytest.raises(tf.errors.UnavailableError, match="connection refused"):
        away.read(7)
    away._address = servers.ps_hosts[0]
    assert away.read(7) == ["ä"]


def test_nothing_is_asked_of_a_server_that_has_ended_through_the_session_that_it_had(local_servers, monkeypatch):
    class Stuck:
        """A session that waits for its server."""

        run = close = threading.Event().wait

    kept = Table(local_servers(1, 1).ps_hosts[0])
    kept._session = Stuck()
    monkeypatch.setattr(table, "ask", lambda _: Status(reason="connection refused"))
    with pytest.raises(tf.errors.UnavailableError, match="connection refused"):
        kept.read(7)


# The end.


def test_a_server_that_is_there_but_never_answers_is_asked_for_a_while(local_servers):
    def ask_in_vain():
        raise tf.errors.UnavailableError(None, None, "no answer from ps-0:2222")

    member = local_servers(1, 1).membership("worker", 0)
    with pytest.raises(
        AwayError, match="worker 0 waited 1 s for its servers: no answer from ps-0:2222: start the missing task, or"
    ):
        member.board.repeat_until_answered(ask_in_vain, timeout_secs=1)


def test_every_server_hears_that_nobody_needs_it_and_the_chief_looks_no_more(local_servers):
    servers = local_servers(2, 1)
    before, chief = threading.enumerate(), servers.membership("worker", 0)
    chief.start()
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "membership" and thread not in before)
    chief.dismiss_servers()
    assert states(chief) == ["evaluated"]
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("reason", ["connection refused", "name not known"])
def test_a_server_that_leaves_before_the_chief_knows_that_it_has_heard_is_not_waited_for(
    local_servers, monkeypatch, reason
):
    chief = local_servers(1, 1).membership("worker", 0)

    def write(_):  # the answer is lost
        raise tf.errors.UnavailableError(None, None, "no answer")

    monkeypatch.setattr(chief.board._tables[chief.task.servers[0]], "write", write)
    reasons = iter(["no answer", "no route to host", reason])
    monkeypatch.setattr(board, "ask", lambda _: Status(reason=next(reasons)))
    chief.dismiss_servers()
    assert not [*reasons]


def test_a_server_that_is_lost_before_it_could_hear_it_is_waited_for(local_servers, monkeypatch):
    chief = local_servers(1, 1).membership("worker", 0)
    table = chief.board._tables[chief.task.servers[0]]
    write, failures = table.write, iter([tf.errors.UnavailableError(None, None, "connection refused")])

    def write_later(values):
        if failure := next(failures, None):
            raise failure
        write(values)

    monkeypatch.setattr(table, "write", write_later)
    monkeypatch.setattr(board, "ask", lambda _: Status(reason="connection refused"))
    chief.dismiss_servers()
    assert states(chief) == ["evaluated"]


def test_a_server_that_leaves_before_its_first_answer_has_come_is_not_waited_for(local_servers, monkeypatch):
    chief = local_servers(1, 1).membership("worker", 0, recovery_secs=-1)
    table = chief.board._tables[chief.task.servers[0]]

    class LostAnswer:
        """A session in which what is run is done, but the answer is lost, since the server has left."""

        def run(self, *_):
            monkeypatch.setattr(board, "ask", lambda _: Status(reason="connection refused"))
            raise tf.errors.UnavailableError(None, None, "Socket closed")

        def close(self):
            pass

    monkeypatch.setattr(table, "_connect", LostAnswer)
    chief.dismiss_servers()


def test_a_ps_that_is_told_to_stop_and_then_hears_the_last_word_has_done_its_part(local_servers, monkeypatch, caplog):
    caplog.set_level("INFO")
    ends = queue.SimpleQueue()
    monkeypatch.setattr(departure, "end_process", ends.put)
    servers = local_servers(1, 1)
    chief, ps = servers.membership("worker", 0), servers.membership("ps", 0)
    chief.board.say(TRAINED)
    leaving = Departure(ps, stop_secs=3)
    leaving.start()
    ps.start()
    poll_for(lambda: "ps 0: worker 0: trained" in caplog.text, "word of the chief")
    assert leaving._note_signal(signal.SIGTERM).secs > 3, "the chief saves meanwhile"
    chief.board.say(EVALUATED)
    assert ends.get(timeout=DEADLINE_SECS) == 0
    ps._is_over.set()


@pytest.mark.promises("stop-of-ps")
def test_a_ps_that_is_told_to_stop_while_it_is_busy_waits_for_who_may_train(local_servers, monkeypatch):
    def read():
        reads.append(1)
        raise tf.errors.UnavailableError(None, None, "it saves")

    ends, reads = queue.SimpleQueue(), []
    monkeypatch.setattr(departure, "end_process", ends.put)
    servers = local_servers(1, 1)
    servers.membership("worker", 0).board.say(TRAINING)
    ps = servers.membership("ps", 0)
    monkeypatch.setattr(ps.board, "records", read)
    leaving = Departure(ps)
    leaving.start()
    leaving._note_signal(signal.SIGTERM)
    ps.start()
    poll_for(lambda: len(reads) > 2, "decisions")
    assert ends.empty()
    assert not leaving._is_free(is_busy=True)
    leaving._records = [Record(TRAINED)]
    monkeypatch.setattr(status, "ask", lambda _: Status(reason="no answer"))
    assert leaving._is_free(is_busy=True), "nobody is there"
    leaving._records = [Record()]
    monkeypatch.undo()
    monkeypatch.setattr(departure, "end_process", ends.put)
    servers.membership("worker", 0).board.say(STOPPED)
    assert ends.get(timeout=DEADLINE_SECS) == 128 + signal.SIGTERM
    ps._is_over.set()
