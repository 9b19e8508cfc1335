"""A cluster in a WireGuard network, as `deploy/wireguard.conf` makes it: nobody else can read or enter it."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.testbed import encrypted, network
from benchmarks.testbed.processes import Cluster, poll_for

PS, WORKER, OUTSIDER = range(3)  # their hosts
CONNECT = """
import socket, sys
with socket.create_connection((sys.argv[1], 2222), timeout=float(sys.argv[2])):
    print("connected")
"""


@pytest.fixture(autouse=True)
def _available():
    if reason := encrypted.missing():
        reason += " (Debian: apt-get install wireguard-tools wireguard-go iptables)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


def connect(hosts, host, address, timeout_secs):
    """Try to connect to the port of the ps from a host; return "connected", or the error."""
    command = [*hosts.command(host), sys.executable, "-c", CONNECT, address, str(timeout_secs)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr.splitlines()[-1]


def firewall(hosts, host):
    """Return the rules of a host for what comes in."""
    commands = [[*hosts.command(host), tables, "--list-rules", "INPUT"] for tables in ("iptables", "ip6tables")]
    return [subprocess.run(c, env=network.ENVIRONMENT, capture_output=True, check=True).stdout for c in commands]


def train(hosts, folder, data_dir, before_training=lambda: None):
    """Train on a ps and a worker; return the bytes of the parameters, and what crossed the wire meanwhile."""
    folder.mkdir()
    flags = [f"--train_dir={folder / 'train'}", f"--data_dir={data_dir}", "--train_steps=16", "--hidden_units=10"]
    hosts.capture(folder / "capture")
    with Cluster(folder, 1, 1, *flags, network=hosts) as cluster:
        cluster.start("ps 0")
        poll_for(lambda: connect(hosts, WORKER, hosts.address(PS), 1) == "connected", "answer of the ps")
        before_training()
        cluster.start("worker 0")
        assert set(cluster.wait().values()) == {0}
    # The chief has fetched the last parameters, to test them.
    checkpoint = tf.train.load_checkpoint(str(folder / "train"))
    return checkpoint.get_tensor("mlp/hidden/weights").tobytes(), (folder / "capture").read_bytes()


def runs(data):
    """Return all runs of eight bytes, each as a number."""
    return np.concatenate(
        [np.frombuffer(data, np.uint64, (len(data) - offset) // 8, offset) for offset in range(min(8, len(data)))]
    )


@pytest.mark.slow
def test_who_is_outside_can_neither_connect_nor_read(tmp_path, black_and_white_dir):
    with network.Network(2) as hosts:
        parameters, wire = train(hosts, tmp_path / "open", black_and_white_dir)
        found = np.isin(runs(parameters), runs(wire))
        assert found.mean() > 0.9, "without encryption, the parameters can be read"

    with encrypted.EncryptedNetwork(3, num_outsiders=1) as hosts:
        rules = firewall(hosts, PS)
        hosts.restart(PS)
        assert firewall(hosts, PS) == rules, "each rule is there once"

        def try_to_connect():
            for address in (hosts.open_address(PS), hosts.address(PS)):
                assert connect(hosts, OUTSIDER, address, 1) == "TimeoutError: timed out"
            assert connect(hosts, WORKER, hosts.open_address(PS), 1) == "TimeoutError: timed out"

        parameters, wire = train(hosts, tmp_path / "encrypted", black_and_white_dir, try_to_connect)
        assert len(wire) > 4 * len(parameters)
        assert not np.isin(runs(parameters), runs(wire)).any()
