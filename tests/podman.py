"""Podman with a store of its own below `.cache/`, and the image of `deploy/Dockerfile` in it.

No registry has to be reached: the image is built on Debian with a Python of its own, in place of the official one. The
store keeps what was built: only what has changed is built again.
"""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import threading

from benchmarks.testbed.processes import DEADLINE_SECS, PROJECT, poll_for

PROGRAMS = ("podman", "runc", "mmdebstrap", "aardvark-dns", "catatonit", "netavark", "docker-compose")
STORE = PROJECT / ".cache" / "containers"
RUN = pathlib.Path("/run", f"mnist-{hashlib.sha256(bytes(STORE)).hexdigest()[:8]}")  # short: it has sockets
SOCKET = RUN / "docker"
# crun, the default, fails where both versions of cgroups are mounted. No limit may be above one of this machine.
CONTAINERS = f"""
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
tmp_dir = "{RUN}/tmp"
[network]
network_backend = "netavark"
network_config_dir = "{STORE}/networks"
"""
STORAGE = f"""
[storage]
driver = "overlay"
graphroot = "{STORE}"
runroot = "{RUN}"
"""
ENVIRONMENT = {
    **os.environ,
    "CONTAINERS_CONF": f"{STORE}/containers.conf",
    "CONTAINERS_STORAGE_CONF": f"{STORE}/storage.conf",
    "DOCKER_HOST": f"unix://{SOCKET}",
}
NAME_SERVER = pathlib.Path("/run/containers/networks/aardvark-dns/aardvark.pid")
REMINDER_SECS = 7  # not the 5 after which a resolver asks again
BASE = "localhost/python:debian"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# Prints an archive of Debian with a Python that pip may install into, and that trusts whom this machine trusts.
MAKE_BASE = [
    *("mmdebstrap", "--variant=apt", "--include=python3,python3-venv,ca-certificates"),
    '--customize-hook=chroot "$1" python3 -m venv /usr/local/py',
    *([f"--customize-hook=upload {CERTIFICATES} {CERTIFICATES}"] if os.path.exists(CERTIFICATES) else []),
    "bookworm",
]
BUILD = ["--isolation=chroot", "--network=host", "--pull=never"]
# Makes podman, or Debian's Compose, of docker in a shell: what is built reaches the network of this machine.
DOCKER = f"""
docker() {{
  if [ "$1" = compose ]; then docker-compose "${{@:2}}"; return; fi
  if [ "$1" = build ]; then set -- build {shlex.join(BUILD)} "${{@:2}}"; fi
  podman "$@"
}}
"""


class CannotRunError(Exception):
    """No container runs here: the message says why."""


def run(*command, **options):
    """Run a command of podman, or of what talks to it; return what it prints, both outputs together."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, env=ENVIRONMENT, **{"cwd": PROJECT, **pipes, **options})
    assert done.returncode == 0, f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def get_ready(session):
    """Build the image mnist:1, once in a session of tests; remove what an earlier one has left.

    Raises:
      CannotRunError: this machine lacks something, or forbids it.
    """
    if os.getuid():
        raise CannotRunError("only root may run them")
    if missing := [name for name in PROGRAMS if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/lib/podman")]:
        raise CannotRunError(f"there is no {', '.join(missing)} (Debian: apt-get install {' '.join(missing)})")
    STORE.mkdir(parents=True, exist_ok=True)
    with open(STORE / "session", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the others wait here
        file.seek(0)
        if file.read() == session:
            return
        (STORE / "containers.conf").write_text(CONTAINERS)
        (STORE / "storage.conf").write_text(STORAGE)
        try:
            _make_base()
        except AssertionError as error:
            raise CannotRunError(str(error)) from error
        for kind in ("pod", "container", "volume"):
            run("podman", kind, "rm", "--force", "--all")
        run("podman", "network", "prune", "--force")
        run("podman", "build", *BUILD, f"--build-arg=BASE={BASE}", "--file=deploy/Dockerfile", "--tag=mnist:1", ".")
        run("podman", "image", "prune", "--force")  # what the last build has replaced
        file.truncate(0)
        file.write(session)


def _make_base():
    """Make the base, if it is not there, and try whether it runs."""
    if BASE not in run("podman", "images", "--format={{.Repository}}:{{.Tag}}"):
        archive = STORE / "base.tar"
        run(*MAKE_BASE, str(archive))
        run("podman", "import", "--change=ENV PATH=/usr/local/py/bin:/usr/sbin:/usr/bin:/sbin:/bin", str(archive), BASE)
        archive.unlink()
    run("podman", "run", "--rm", "--network=none", BASE, "python", "--version")


@contextlib.contextmanager
def network(name, *options):
    """A network; with it all containers and pods in it end, and the volumes go whose names begin with its name."""
    try:
        run("podman", "network", "create", *options, name)
        yield name
    except BaseException:
        print(run("podman", "ps", "--all", "--pod"))
        alone = run("podman", "ps", "--all", "--format={{.Names}}", f"--filter=network={name}")
        in_pods = run("podman", "pod", "ps", "--format={{.ContainerNames}}", f"--filter=network={name}")
        for container in [*alone.split(), *in_pods.replace(",", " ").split()]:
            print(f"--- {container}, at its end:", *logs(container).splitlines()[-40:], sep="\n")
        raise
    finally:
        run("podman", "network", "rm", "--force", "--time=0", name)
        for volume in run("podman", "volume", "ls", "--quiet", f"--filter=name=^{name}-").split():
            run("podman", "volume", "rm", volume)


@contextlib.contextmanager
def reminding_name_server():
    """Let the server of names read its files every few seconds.

    aardvark-dns before 1.11 misses a signal to do so while it still obeys the one before, and ends what it was asked
    meanwhile. A container that is started in these moments has no name until another one starts or ends.
    """
    is_over = threading.Event()

    def remind():
        while not is_over.wait(REMINDER_SECS):
            with contextlib.suppress(OSError, ValueError):  # none runs, or it has just been started
                number = int(NAME_SERVER.read_text())
                if pathlib.Path(f"/proc/{number}/comm").read_text() == "aardvark-dns\n":
                    os.kill(number, signal.SIGHUP)

    thread = threading.Thread(target=remind)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextlib.contextmanager
def service():
    """Docker's interface to podman, which docker-compose talks to."""
    SOCKET.unlink(missing_ok=True)
    command = ["podman", "system", "service", "--time=0", f"unix://{SOCKET}"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            poll_for(SOCKET.exists, "socket of podman")
            yield
        finally:
            process.terminate()


def logs(container):
    return run("podman", "logs", container)


def wait_for_log(container, pattern, after=0):
    """Return the first match in the log after so many characters."""
    return poll_for(lambda: re.search(pattern, logs(container)[after:]), f"{pattern!r} in the log of {container}")


def state(container, field):
    """Return a field of what podman knows of a container, such as `.State.ExitCode`, as text."""
    return run("podman", "inspect", f"--format={{{{{field}}}}}", container).strip()


def wait(*containers):
    """Wait until all have ended, and return their exit statuses."""
    return [int(line) for line in run("podman", "wait", *containers, timeout=DEADLINE_SECS).split()]
