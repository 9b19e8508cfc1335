"""`deploy/slurm.sbatch` under a real Slurm, with two nodes on this machine."""

import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess

import pytest

from benchmarks.testbed.processes import PROJECT, Process, poll_for, running_with
from runtime.launch.ports import choose_ports

ENVIRONMENT = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}  # where the daemons are
PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch")
CONFIGURATION = """
ClusterName=test
AuthInfo=socket={folder}/munge.socket
MessageTimeout=100
MpiDefault=none
ProctrackType=proctrack/linuxproc
ReturnToService=2
SelectType=select/cons_tres
SlurmctldHost={host}(127.0.0.1)
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldPort={ports[0]}
SlurmdParameters=config_overrides
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
SlurmdUser={user}
SlurmUser={user}
StateSaveLocation={folder}/state
SwitchType=switch/none
TaskPlugin={task_plugin}
NodeName=node0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={num_cpus}
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={num_cpus}
PartitionName=all Nodes=ALL Default=YES
PartitionName=short Nodes=ALL MaxTime=60
"""


class Slurm:
    """A controller and two nodes, with all that they write in a folder."""

    def __init__(self, folder, binds):
        """Bind tasks to cores, each node to as many as this machine has; or let each have more, and bind none."""
        self.folder = folder
        self._binding = {
            "task_plugin": "task/affinity" if binds else "task/none",
            "num_cpus": os.cpu_count() if binds else 8,
        }
        # As where a site's profile sets SBATCH_EXPORT=NONE: then srun, too, passes on nothing by itself.
        self._env = {**ENVIRONMENT, "SLURM_CONF": str(folder / "slurm.conf"), "SLURM_EXPORT_ENV": "NONE"}
        self._daemons = []

    def __enter__(self):
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                folder=self.folder,
                host=socket.gethostname(),
                ports=choose_ports(3),
                user=getpass.getuser(),
                **self._binding,
            )
        )
        files = {name: f"{self.folder}/munge.{name}" for name in ("key", "log", "pid", "seed")}
        self.run("mungekey", "--create", f"--keyfile={files['key']}")
        options = [f"--{name}-file={path}" for name, path in files.items()]
        # By force: on this machine, everybody may write to the folder above.
        self._start("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *options)
        poll_for((self.folder / "munge.socket").exists, "socket of munged")
        self._start("slurmctld", "-D")
        self._start("slurmd", "-D", "-N", "node0")
        self._start("slurmd", "-D", "-N", "node1")
        poll_for(lambda: self.run("sinfo", "--noheader", "--format=%T %D") == "idle 2\n", "two idle nodes")
        return self

    def _start(self, *command):
        self._daemons.append(Process(command, self.folder / f"daemon{len(self._daemons)}.log", self._env))

    def run(self, *command):
        """Run a command, and return what it prints."""
        done = subprocess.run(command, cwd=PROJECT, env=self._env, capture_output=True, text=True)
        assert done.returncode == 0, done
        return done.stdout

    def state(self, job):
        return re.search(r"JobState=(\w+)", self.run("scontrol", "show", "job", job))[1]

    def __exit__(self, *_):
        jobs = self.run("squeue", "--noheader", "--format=%i").split()
        for job in jobs:
            self.run("scancel", "--signal=KILL", "--full", job)
            self.run("scancel", job)
        poll_for(lambda: not self.run("squeue", "--noheader"), "end of every job")
        for daemon in reversed(self._daemons):
            daemon.send(signal.SIGTERM)
            daemon.wait()
        for path in self.folder.glob("*.log"):  # pytest shows this when the test failed
            print(f"--- {path}, at its end:", *path.read_text().splitlines()[-60:], sep="\n")


@pytest.fixture
def slurm(tmp_path, request):
    """A Slurm that runs, which binds tasks to cores if the parameter says so."""
    if missing := [program for program in PROGRAMS if not shutil.which(program, path=ENVIRONMENT["PATH"])]:
        reason = f"there is no {', '.join(missing)} (Debian: apt-get install munge slurmctld slurmd slurm-client)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    with Slurm(tmp_path, getattr(request, "param", False)) as slurm:
        yield slurm


def submit(slurm, *flags, options=(), folder=PROJECT):
    """Submit `deploy/slurm.sbatch` from a folder; return the job, and its log as a file."""
    log = slurm.folder / f"job{len(list(slurm.folder.glob('job*.log')))}.log"
    log.touch()
    script = str(PROJECT / "deploy" / "slurm.sbatch")
    job = slurm.run("sbatch", "--parsable", f"--chdir={folder}", f"--output={log}", *options, script, *flags).strip()
    return job, log


def wait_until_all_train(log, num_workers=2, num_characters=0):
    """Wait until each worker says that it has taken steps, after so many characters of the log."""
    for worker in range(num_workers):
        said = rf"worker {worker}: global step \d+/"
        poll_for(lambda said=said: re.search(said, log.read_text()[num_characters:]), said)


def tasks_of(train_dir, job_name=""):
    """Return the process numbers of the tasks that run."""
    found = running_with(str(train_dir))
    return [process.pid for process in found if f" distributed.py --job_name={job_name}" in process.command]


def wait_for_end(slurm, job):
    """Return the state in which a job ended."""
    going_on = ("PENDING", "RUNNING", "COMPLETING")
    poll_for(lambda: slurm.state(job) not in going_on, f"end of job {job}")
    return slurm.state(job)


@pytest.mark.slow
def test_a_job_survives_a_kill_and_a_requeue_and_learns(slurm, mnist_dir):
    train_dir = slurm.folder / "train"
    end = slurm.folder / "end"  # not known before the requeue, which takes a job with the flags that it has
    end.write_text("--train_steps=1000000\n")
    flags = [f"--flagfile={end}", "--learning_rate=0.002", "--log_every_secs=0.1"]
    job, log = submit(slurm, *flags, f"--data_dir={mnist_dir}", f"--train_dir={train_dir}")

    wait_until_all_train(log)
    (ps,) = tasks_of(train_dir, "ps")
    os.kill(ps, signal.SIGKILL)
    again = r"ps 0 ended with status 137: starting it again(?s:.*)restored \S+"
    restored = poll_for(lambda: re.search(again, log.read_text()), again)
    wait_until_all_train(log, num_characters=restored.end())

    slurm.run("scancel", "--signal=TERM", job)  # what Slurm does shortly before the end of the job's time
    poll_for(lambda: "Restarts=1" in slurm.run("scontrol", "show", "job", job), "requeue")
    stopped_at = len(log.read_text())
    poll_for(lambda: slurm.state(job) == "PENDING", "end of the tasks")
    step = int(re.findall(r"worker 0 stopped and saved global step (\d+)", log.read_text())[-1])
    end.write_text(f"--train_steps={step + 1000}\n")
    # Otherwise the job waits for two minutes. A node refuses it in the second in which it ended there: "Job credential
    # revoked", since Slurm compares whole seconds.
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+3seconds")
    assert wait_for_end(slurm, job) == "COMPLETED"
    assert re.search(rf"restored \S+model\.ckpt-{step}, at global step [1-9]", log.read_text()[stopped_at:])
    assert json.loads((train_dir / "result.json").read_text())["test_accuracy"] >= 0.95


def test_jobs_on_the_same_nodes_have_ports_of_their_own_and_one_that_is_cancelled_can_go_on(slurm, black_and_white_dir):
    flags = [f"--data_dir={black_and_white_dir}", "--log_every_secs=0.1"]
    cancelled = ["--train_steps=1000000", f"--train_dir={slurm.folder / 'cancelled'}"]
    job, log = submit(slurm, *flags, *cancelled, options=["--ntasks=4"])
    other, _ = submit(slurm, *flags, "--train_steps=300", f"--train_dir={slurm.folder / 'other'}")
    assert wait_for_end(slurm, other) == "COMPLETED"

    assert slurm.state(job) == "RUNNING"
    wait_until_all_train(log, num_workers=3)
    slurm.run("scancel", job)
    assert wait_for_end(slurm, job) == "CANCELLED"
    assert "worker 0 stopped and saved global step " in log.read_text()
    _, log = submit(slurm, *flags, *cancelled, options=["--ntasks=2"])
    poll_for(lambda: re.search(r"restored \S+model\.ckpt-[1-9]", log.read_text()), "restored checkpoint")


def test_an_element_of_an_array_is_queued_again_alone(slurm, black_and_white_dir):
    flags = ["--train_steps=1000000", "--train_dir=", f"--data_dir={black_and_white_dir}", "--log_every_secs=0.1"]
    logs = [slurm.folder / f"element{index}.log" for index in (1, 2)]
    array, _ = submit(slurm, *flags, options=["--array=1-2", "--ntasks=2", f"--output={slurm.folder}/element%a.log"])
    for log in logs:
        poll_for(log.exists, f"{log}")
        wait_until_all_train(log, num_workers=1)
    slurm.run("scancel", "--signal=TERM", f"{array}_2")  # whose own number is that of the array
    poll_for(lambda: "Restarts=1" in slurm.run("scontrol", "show", "job", f"{array}_2"), "requeue")
    assert "Restarts=0" in slurm.run("scontrol", "show", "job", f"{array}_1")
    assert slurm.state(f"{array}_1") == "RUNNING"


def test_each_of_twelve_tasks_hears_where_all_listen(slurm):
    folder = slurm.folder / "project"  # whose tasks only say what they hear
    folder.mkdir()
    for name in (".venv", "runtime"):
        (folder / name).symlink_to(PROJECT / name)
    (folder / "distributed.py").write_text("import os, sys\n\nprint('port', os.environ['PORTS'], *sys.argv[1:])\n")
    job, log = submit(slurm, options=["--partition=short", "--account=physics", "--ntasks=12"], folder=folder)
    assert {"Partition=short", "Account=physics"} <= set(slurm.run("scontrol", "show", "job", job).split())
    assert wait_for_end(slurm, job) == "COMPLETED", log.read_text()
    pattern = r"port (\d+) --job_name=(\w+) --task_index=(\d+) \S+ (--ps_hosts=\S+ --worker_hosts=\S+)"
    told = re.findall(pattern, log.read_text())
    assert len({(job_name, index) for _, job_name, index, _ in told}) == len(told) == 12
    (lists,) = {lists for *_, lists in told}
    hosts = {job_name: addresses.split(",") for job_name, addresses in re.findall(r"--(\w+)_hosts=(\S+)", lists)}
    for port, job_name, index, _ in told:
        assert hosts[job_name][int(index)].endswith(f":{port}")


@pytest.mark.skipif(os.cpu_count() < 2, reason="needs two cores")
@pytest.mark.parametrize("slurm", [True], indirect=True, ids=["that_binds"])
def test_the_tasks_of_a_node_share_its_cores(slurm, black_and_white_dir):
    """Each takes its part of those that it sees. Slurm shows them those that the job has there."""
    train_dir = slurm.folder / "train"
    flags = ["--train_steps=300", f"--data_dir={black_and_white_dir}", f"--train_dir={train_dir}"]
    job, log = submit(slurm, *flags, options=["--ntasks=2"])
    tasks = poll_for(lambda: (found := tasks_of(train_dir)) and len(found) == 2 and found, "two tasks")
    first, second = map(os.sched_getaffinity, tasks)
    assert first == second
    assert len(first) >= 2
    assert wait_for_end(slurm, job) == "COMPLETED", log.read_text()


def test_a_job_that_cannot_go_on_fails(slurm, tmp_path):
    job, log = submit(slurm, "--learning_rate=0")
    elsewhere, elsewhere_log = submit(slurm, folder=tmp_path)
    assert wait_for_end(slurm, job) == wait_for_end(slurm, elsewhere) == "FAILED"
    assert "ended with status 2: ending the job" in log.read_text()
    assert "starting it again" not in log.read_text()
    assert "submit this file from the project's folder" in elsewhere_log.read_text()
