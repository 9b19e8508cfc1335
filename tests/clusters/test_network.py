"""What a cluster promises when its network is bad, kept by real processes, each on a host of its own."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from benchmarks.testbed import network
from benchmarks.testbed.processes import DEADLINE_SECS, PROJECT, Cluster, Process, can_run, poll_for
from runtime.updates.mode import EXCHANGES_PER_RUN
from tests.full_disk import NEEDS_PRIVATE_MOUNTS
from tests.test_links import README

PS, WORKER_1, SPARE = 0, 2, 3  # the hosts of ps 0 and worker 1, and one without a task
CUT_SECS = 20.0

GREETING = "this is host 0"
CUT_OFF = "TimeoutError: timed out"  # of a connection
LISTEN = f"""
import socket
families = {{"family": socket.AF_INET6, "dualstack_ipv6": True}} if socket.has_dualstack_ipv6() else {{}}
with socket.create_server(("", 2222), **families) as server:
    print("listening", flush=True)
    while True:
        server.accept()[0].send(b"{GREETING}")
"""
CONNECT = """
import socket, sys, time
start = time.monotonic()
with socket.create_connection((sys.argv[1], 2222), timeout=float(sys.argv[2])) as connection:
    print(connection.recv(99).decode(), "after", time.monotonic() - start)
"""


NEEDS_IPTABLES = pytest.mark.skipif(
    not can_run([*network.PRIVATE, "ip6tables", "-L"]), reason="needs iptables in a user namespace"
)


@pytest.fixture
def hosts():
    """Four hosts of a network of their own."""
    if reason := network.missing():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no network of several hosts here: {reason}")
    with network.Network(4) as hosts:
        yield hosts


@pytest.fixture
def listener(hosts, tmp_path):
    """An open port on host 0."""
    listener = Process([*hosts.command(0), sys.executable, "-c", LISTEN], tmp_path / "listener")
    listener.wait_for_output("listening")
    yield listener
    listener.kill()


def connect(address, on_host=(), timeout_secs=DEADLINE_SECS):
    """Return what a connection to the port at `address` brings, or its error."""
    command = [*on_host, sys.executable, "-c", CONNECT, address, str(timeout_secs)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr.splitlines()[-1]


def is_cut_off(hosts, host):
    """Whether nothing of `host` reaches host 0."""
    return connect(hosts.address(0), hosts.command(host), timeout_secs=1) == CUT_OFF


@pytest.mark.usefixtures("listener")
def test_a_host_is_reached_as_its_links_allow(hosts):
    def secs(host):
        greeting, secs = connect(hosts.address(0), hosts.command(host)).split(" after ")
        assert greeting == GREETING
        return float(secs)

    assert secs(1) > 0
    hosts.cut(0, 1)
    assert is_cut_off(hosts, 1)
    assert secs(2) > 0, "another link is not cut"
    hosts.heal(1, 0)
    assert secs(1) > 0
    hosts.set_loss(1.0)
    assert is_cut_off(hosts, 1)
    hosts.set_loss(0.0)
    hosts.set_delay(0.1)
    assert secs(1) >= 4 * 0.1, "to connect is a round trip, to hear something is another"
    hosts.set_delay(0.0)
    hosts.set_bits_per_sec(4000)
    num_bytes = hosts.num_bytes(0)
    assert secs(1) >= 3 * 60 * 8 / 4000, "two packets to connect and one with the greeting, of 60 bytes or more"
    assert hosts.num_bytes(0) >= num_bytes + 3 * 60


@pytest.mark.usefixtures("listener")
def test_a_host_and_the_rest_of_the_machine_do_not_reach_each_other(hosts):
    assert GREETING in connect("localhost", hosts.command(0))
    assert "Connection refused" in connect("localhost", hosts.command(1)), "each host has a loopback of its own"
    assert "Network is unreachable" in connect("192.0.2.1", hosts.command(1)), "no host has a way out"
    for address in ("localhost", hosts.address(0)):
        assert GREETING not in connect(address), "something else may answer there, but not the host"


@pytest.mark.usefixtures("listener")
@NEEDS_IPTABLES
@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_the_firewall_rules_of_the_documents_let_only_the_cluster_in(hosts):
    rules = re.findall(r"`(ip6?tables [^`]*)`", (PROJECT / "docs" / "security.md").read_text())
    assert len(rules) == 2
    assert GREETING in connect("::1", hosts.command(0))
    for rule in rules:
        rule = rule.replace("10.0.0.0/24", hosts.address(1))
        subprocess.run([*hosts.command(0), *rule.split()], env=network.ENVIRONMENT, check=True)
    assert GREETING in connect(hosts.address(0), hosts.command(1))
    assert is_cut_off(hosts, 2)
    for own in ("::1", "127.0.1.1", hosts.address(0)):  # Debian gives a host's own name the second
        assert GREETING in connect(own, hosts.command(0)), "a task must reach itself"
    listing = [*hosts.command(0), "ip6tables", "--list-rules", "INPUT"]
    found = subprocess.run(listing, env=network.ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    assert "-A INPUT ! -i lo -p tcp -m tcp --dport 2222 -j DROP" in found, "no IPv6 leads from one host here to another"


@pytest.fixture
def slow_run(hosts, tmp_path, black_and_white_dir):
    """Start a cluster that does not end before the delay of its links is taken away, and wait until it trains.

    A step takes two round trips at least, one for parameters and one for gradients, however fast the processor is: two
    workers need a minute for 3000.
    """

    @contextlib.contextmanager
    def start(*flags):
        hosts.set_delay(0.01)
        flags = ["--train_steps=3000", "--log_every_secs=0.1", f"--data_dir={black_and_white_dir}", *flags]
        with Cluster(tmp_path, 1, 2, *flags, network=hosts) as cluster:
            cluster.start()
            for worker in ("worker 0", "worker 1"):
                wait_for_steps(cluster[worker], 5)
            yield cluster

    return start


def test_a_task_on_another_host_than_that_of_its_address_says_so_and_disturbs_nobody(
    hosts, tmp_path, black_and_white_dir
):
    flags = ["--train_steps=1000000", "--log_every_secs=0.1", f"--data_dir={black_and_white_dir}"]
    with Cluster(tmp_path, 1, 2, *flags, network=hosts) as cluster:
        command = [*hosts.command(SPARE), sys.executable, str(PROJECT / "distributed.py"), *cluster.flags]
        misplaced = Process([*command, *cluster.role("ps 0")], tmp_path / "misplaced")
        address = re.escape(cluster.address["ps 0"])
        misplaced.wait_for_output(rf"ps 0 at {address} to be this process \(connection refused\)")
        misplaced.kill()
        cluster.start()
        wait_for_steps(cluster["worker 1"], 5)
        second = Process([*command, *cluster.role("worker 1")], tmp_path / "second")
        second.wait_for_output(r"worker 1 at .* to be this process \(another process answers there\)")
        wait_for_steps(cluster["worker 1"], 5)
        second.kill()
        wait_for_steps(cluster["worker 1"], 5)
        assert "session is lost" not in cluster["worker 1"].output()
        for task in cluster.tasks.values():
            task.kill()


@pytest.mark.parametrize("flagfile", ["", "--flagfile=cluster.flags"], ids=["on_one_machine", "on_three_machines"])
def test_the_tasks_that_the_readme_starts_by_hand_train(hosts, tmp_path, mnist_dir, flagfile):
    (shown,) = re.findall(r"^```text\n(--ps_hosts(?s:.*?))```$", README.read_text(), re.MULTILINE)
    (tmp_path / "cluster.flags").write_text(shown)
    train_dir = tmp_path / "run1"
    with Cluster(tmp_path, 1, 2, network=hosts) as cluster:
        if not flagfile:
            cluster.place([0, 0, 0])
        for name in cluster.names:
            flags = [*flagfile.split(), *cluster.role(name)]
            cluster.start_with(name, *flags, f"--train_dir={train_dir}", f"--data_dir={mnist_dir}", "--train_steps=200")
        assert cluster.wait() == dict.fromkeys(cluster.names, 0)
    assert json.loads((train_dir / "result.json").read_text())["global_step"] >= 200


# The file of names of one process, and its name server.
BIND_NAMES = 'mount --bind "$0" /etc/hosts && mount --bind "$0.server" /etc/resolv.conf && exec "$@"'


class NamedPs:
    """A cluster whose ps has a name, which leads to `PS` at first, and whose workers train."""

    def __init__(self, hosts, cluster, folder, name_server=""):
        self._cluster, self._names = cluster, folder / "hosts"
        (folder / "hosts.server").write_text(name_server and f"nameserver {name_server}\n")
        cluster.flags = [flag.replace(hosts.address(PS), "ps-0") for flag in cluster.flags]
        self.lead_to(hosts.address(PS))
        for name in cluster.names:
            self.start(name)
        for worker in ("worker 0", "worker 1"):
            wait_for_steps(cluster[worker], 1)

    def lead_to(self, address=None):
        """Let the name lead to an address, or to none."""
        self._names.write_text("127.0.0.1 localhost\n" + (f"{address} ps-0\n" if address else ""))

    def start(self, name):
        before = ["unshare", "--mount", "sh", "-c", BIND_NAMES, str(self._names)]
        self._cluster.start_with(name, *self._cluster.role(name), *self._cluster.flags, before=before)


NEEDS_NAMES = pytest.mark.skipif(
    not can_run(["unshare", "--user", "--map-root-user", "--mount", "true"]), reason="needs unshare"
)


@pytest.mark.promises("another-address")
@NEEDS_NAMES
@pytest.mark.parametrize("new_host", [SPARE, PS], ids=["at_another_address", "behind_a_cut_link"])
def test_a_ps_comes_back_under_its_name_and_a_stop_saves_without_it(hosts, new_host, tmp_path, black_and_white_dir):
    flags = [f"--data_dir={black_and_white_dir}", f"--train_dir={tmp_path}", "--train_steps=1000000"]
    more = ["--log_every_secs=0.1", "--save_checkpoint_secs=600"]
    with Cluster(tmp_path, 1, 2, *flags, *more, network=hosts) as cluster:
        # No name server need answer for a name that the host knows.
        ps = NamedPs(hosts, cluster, tmp_path, name_server="10.0.0.250")
        for worker in ("worker 0", "worker 1"):
            assert "to be this process" not in cluster[worker].output()
            hosts.cut(PS, cluster.host[worker])  # a host that breaks down closes no connection
        cluster["ps 0"].kill()
        cluster.host["ps 0"] = new_host
        ps.lead_to(hosts.address(new_host))
        ps.start("ps 0")
        if new_host == PS:  # nobody has seen it leave or come
            poll_for(lambda: cluster["ps 0"].output().count("ps 0: serving at ") == 2, "start of the other ps")
            for worker in ("worker 0", "worker 1"):
                hosts.heal(PS, cluster.host[worker])
        for worker in ("worker 0", "worker 1"):
            cluster[worker].wait_for_output(r"the last session is lost(?s:.*)local step \d+,")
        ps.lead_to()  # as a manager that removes the names of tasks at the moment in which it tells them to stop
        for task in cluster.tasks.values():
            task.send(signal.SIGTERM)
        assert cluster.wait() == dict.fromkeys(cluster.names, 128 + signal.SIGTERM)
        saved = re.search(r"\nworker 0 stopped and saved global step (\d+) because of", cluster["worker 0"].output())
        steps = re.findall(r"global step (\d+)/", cluster["worker 0"].output())
        assert int(saved[1]) >= int(steps[-1])
        assert (tmp_path / f"model.ckpt-{saved[1]}.index").exists()


@NEEDS_NAMES
def test_a_run_whose_names_are_gone_ends_well(hosts, tmp_path, black_and_white_dir):
    """As where the name server fails: what is connected needs no name."""
    flags = [f"--data_dir={black_and_white_dir}", f"--train_dir={tmp_path}", "--train_steps=3000"]
    with Cluster(tmp_path, 1, 2, "--log_every_secs=0.1", *flags, network=hosts) as cluster:
        ps = NamedPs(hosts, cluster, tmp_path)
        ps.lead_to()
        assert cluster.wait() == dict.fromkeys(cluster.names, 0)
        assert "its servers" not in cluster["worker 0"].output()
        assert "test accuracy 1.0000" in cluster["worker 0"].output()


@NEEDS_NAMES
def test_a_ps_whose_address_another_run_has_taken_is_found_where_its_name_leads(hosts, tmp_path, black_and_white_dir):
    flags = [f"--data_dir={black_and_white_dir}", f"--train_dir={tmp_path}", "--train_steps=1000000"]
    with Cluster(tmp_path, 1, 2, "--log_every_secs=0.1", *flags, network=hosts) as cluster:
        ps, address = NamedPs(hosts, cluster, tmp_path), hosts.address(PS)
        cluster["ps 0"].kill()
        cluster.start_with("ps 0", *cluster.role("ps 0"), f"--ps_hosts={address}:2222", "--worker_hosts=other:2222")
        stranger = cluster["ps 0"]
        for worker in ("worker 0", "worker 1"):
            used = rf"that address is used by another cluster, that of ps 0 with {address}:2222, other:2222"
            line = rf"waiting for the host lists of ps 0 at ps-0:2222 \({used}\) to match"
            cluster[worker].wait_for_output(f"{line}(?s:.*){line}")  # TensorFlow's server has met the stranger, too
        ps.lead_to(hosts.address(SPARE))
        cluster.host["ps 0"] = SPARE
        ps.start("ps 0")
        for worker in ("worker 0", "worker 1"):
            cluster[worker].wait_for_output(r"another cluster(?s:.*)local step \d+,")
        for task in (*cluster.tasks.values(), stranger):
            task.kill()


@pytest.mark.promises("another-address")
@NEEDS_NAMES
def test_a_ps_that_lives_on_at_another_address_is_found_where_its_name_leads(hosts, tmp_path, black_and_white_dir):
    flags = [f"--data_dir={black_and_white_dir}", f"--train_dir={tmp_path}", "--train_steps=1000000"]
    with Cluster(tmp_path, 1, 2, "--log_every_secs=0.1", *flags, network=hosts) as cluster:
        ps = NamedPs(hosts, cluster, tmp_path)
        hosts.move(PS)
        ps.lead_to(hosts.address(PS))
        for worker in ("worker 0", "worker 1"):  # one that was between two calls has not even lost its session
            wait_for_steps(cluster[worker], 1000)
        for task in cluster.tasks.values():
            task.kill()


@pytest.mark.promises("another-address")
@NEEDS_NAMES
@pytest.mark.slow
def test_a_call_that_waits_on_a_ps_is_not_left_behind_at_its_old_address(hosts, tmp_path, black_and_white_dir):
    """Nothing is on its way then, so that TCP would never notice."""
    flags = [f"--data_dir={black_and_white_dir}", f"--train_dir={tmp_path}", "--train_steps=1000000"]
    with Cluster(tmp_path, 1, 2, "--log_every_secs=0.1", "--sync_replicas", *flags, network=hosts) as cluster:
        ps = NamedPs(hosts, cluster, tmp_path)
        chief, other = cluster["worker 0"], cluster["worker 1"]
        chief.send(signal.SIGSTOP)
        poll_for(lambda: stands_still(other), "call that waits for the chief")
        hosts.move(PS)
        ps.lead_to(hosts.address(PS))
        chief.send(signal.SIGCONT)
        wait_for_steps(other, 100)
        for task in cluster.tasks.values():
            task.kill()


def num_steps(worker):
    """Return how many steps a worker has taken, as far as it has said."""
    return max((int(steps) for steps in re.findall(r"local step (\d+),", worker.output())), default=0)


def stands_still(worker):
    """Return whether a worker takes no step for a second."""
    before = num_steps(worker)
    time.sleep(1)
    return num_steps(worker) == before


def wait_for_steps(worker, count):
    """Wait until a worker has taken `count` steps more."""
    last = num_steps(worker) + count
    poll_for(lambda: num_steps(worker) >= last, f"{count} steps more")


@pytest.mark.promises("silent-is-not-dead")
@pytest.mark.slow
def test_a_link_that_is_cut_for_20_secs_is_survived(hosts, slow_run):
    with slow_run() as cluster:
        hosts.cut(PS, WORKER_1)
        heal_at, before = time.monotonic() + CUT_SECS, num_steps(cluster["worker 1"])
        while time.monotonic() < heal_at:
            wait_for_steps(cluster["worker 0"], 10)
        assert num_steps(cluster["worker 1"]) <= before + 2 * EXCHANGES_PER_RUN, "no more than was under way"
        hosts.heal(PS, WORKER_1)
        # TCP doubles the time between its attempts: the next one may be as far away as the first is. It may find that
        # the other end gave up after 20 s, as gRPC's servers do, and then the worker makes itself a new session.
        wait_for_steps(cluster["worker 1"], 10)
        hosts.set_delay(0.0)
        assert set(cluster.wait().values()) == {0}
        assert "test accuracy 1.0000" in cluster["worker 0"].output()


def test_a_link_that_stays_cut_ends_the_worker_and_names_the_ps(hosts, slow_run):
    with slow_run("--recovery_timeout_secs=3") as cluster:
        hosts.cut(PS, WORKER_1)
        assert cluster["worker 1"].wait() == 1
        (line,) = re.findall(r"^error: .*", cluster["worker 1"].output(), re.MULTILINE)
        assert line.startswith("error: worker 1 ")
        assert "ps 0 at 10.0.0.1:2222 (no answer)" in line
        wait_for_steps(cluster["worker 0"], 10)
        cluster["worker 0"].kill()
        cluster["ps 0"].kill()


@NEEDS_IPTABLES
@pytest.mark.parametrize("lost", ["--protocol tcp --syn", "--match length --length 1300:65535"], ids=["syn", "large"])
def test_a_worker_that_no_ps_can_reach_says_what_to_let_through_and_ends(hosts, tmp_path, black_and_white_dir, lost):
    """As behind a firewall that lets only connections out, or only small packets in."""
    rule = ["iptables", "-A", "INPUT", "-i", "tun+", *lost.split(), "-j", "DROP"]
    subprocess.run([*hosts.command(WORKER_1), *rule], env=network.ENVIRONMENT, check=True)
    flags = [f"--data_dir={black_and_white_dir}", f"--train_dir={tmp_path}", "--train_steps=1000000"]
    with Cluster(tmp_path, 1, 2, "--log_every_secs=0.1", *flags, network=hosts) as cluster:
        for name in ("ps 0", "worker 0"):
            cluster.start_with(name, *cluster.role(name), *cluster.flags)
        wait_for_steps(cluster["worker 0"], 10)
        cluster.start_with("worker 1", *cluster.role("worker 1"), *cluster.flags, "--startup_timeout_secs=20")
        assert cluster["worker 1"].wait() == 1
        (line,) = re.findall(r"^error: .*", cluster["worker 1"].output(), re.MULTILINE)
        address, port = cluster.worker_hosts.split(",")[1].split(":")
        assert f"worker 1 waited 20 s for ps 0 at {cluster.ps_hosts} to reach worker 1 at {address}:{port} (" in line
        assert line.endswith(f"open port {port} of this host to them, and let large packets through (the MTU)")
        wait_for_steps(cluster["worker 0"], 10)
        cluster["worker 0"].kill()
        cluster["ps 0"].kill()


def test_100_ms_of_delay_and_1_percent_loss_slow_training_and_break_nothing(hosts, tmp_path, black_and_white_dir):
    hosts.set_delay(0.1)
    hosts.set_loss(0.01)
    flags = ["--train_steps=4", "--sync_replicas", f"--data_dir={black_and_white_dir}", f"--train_dir={tmp_path}"]
    with Cluster(tmp_path, 1, 2, *flags, network=hosts) as cluster:
        cluster.start()
        assert set(cluster.wait().values()) == {0}
        assert "test accuracy" in cluster["worker 0"].output()
        steps, secs = re.search(r"after (\d+) local steps? in (\d+\.\d) s", cluster["worker 0"].output()).groups()
        assert float(secs) >= int(steps) * 2 * 0.2, "a step takes two round trips at least"


@pytest.mark.promises("no-saved-step-is-lost")
@pytest.mark.slow
@NEEDS_PRIVATE_MOUNTS
@pytest.mark.usefixtures("hosts")
def test_a_full_disk_and_other_addresses_lose_nothing(tmp_path, black_and_white_dir):
    """A soak, as short as one can be."""
    soak = [sys.executable, str(PROJECT / "tests" / "soak.py"), "--seed=1", "--minutes=0", "--min_steps=1"]
    faults = ["--faults", "fill", "move_all"]
    process = Process([*soak, *faults, f"--data_dir={black_and_white_dir}"], tmp_path / "output")
    assert process.wait(3 * DEADLINE_SECS) == 0, process.output()  # beside other tests it takes most of one
    for fault in ("fill the disk", "other addresses for all", r"\*\*all faults\*\*"):
        assert re.search(rf"^\| {fault}.* \| [1-9]", process.output(), re.MULTILINE), fault
