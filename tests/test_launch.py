import fcntl
import os
import re
import shutil
import socket
import subprocess
import sys

import pytest

from benchmarks.testbed.network import ENVIRONMENT, PRIVATE
from benchmarks.testbed.processes import PROJECT, can_run
from runtime.launch.options import parse
from runtime.launch.ports import choose_ports
from tests.terminal import Terminal

# Stands in for the Python of a virtual environment: it notes what pip is asked for, and succeeds.
FAKE_PYTHON = '#!/bin/sh\nif [ "$2" = pip ]; then shift 2; echo "$@" >>"${0%/*}/pip.log"; fi\n'


def test_ports_are_free_and_all_different():
    ports = choose_ports(50)
    assert len(set(ports)) == 50
    assert all(10000 <= port < 32768 for port in ports)
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_no_two_processes_choose_the_same_port():
    """Both look before either listens: a task listens seconds after its port was chosen."""
    (other,) = choose_ports(1)
    command = f"from runtime.launch import ports; ports.CANDIDATES = range({other}, {other + 1}); ports.choose_ports(1)"
    done = subprocess.run([sys.executable, "-c", command], cwd=PROJECT, capture_output=True, text=True)
    assert f"OSError: fewer than 1 ports from {other} to {other} are free" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not can_run([*PRIVATE, "ip", "link"]), reason="needs unshare and ip")
def test_a_machine_without_a_loopback_address_is_told(tmp_path):
    without = ["sh", "-c", 'ip link set lo up && ip address delete 127.0.0.1/8 dev lo && exec "$0" "$@"']
    command = ["./run_local_cluster.sh", "--no_isolation", f"--train_dir={tmp_path}"]
    done = subprocess.run([*PRIVATE, *without, *command], cwd=PROJECT, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.endswith("error: this machine has no address 127.0.0.1: add it to the loopback interface\n")


@pytest.fixture
def install(tmp_path):
    """Run `venv.sh` in a project of its own, and return which files pip has been told to install."""
    (tmp_path / "runtime" / "launch").mkdir(parents=True)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    script = shutil.copy(PROJECT / "runtime" / "launch" / "venv.sh", tmp_path / "runtime" / "launch")
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    (tmp_path / "requirements.txt").write_text("some-package>=1\n")
    (tmp_path / "requirements.lock").write_text("some-package==1.5 --hash=sha256:00\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    log = python.with_name("pip.log")

    def install(*arguments):
        log.write_text("")
        done = subprocess.run([script, *arguments], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == f"{python}\n"
        lines = log.read_text().splitlines()
        assert all(("--require-hashes" in line) == line.endswith(".lock") for line in lines)
        return [line.split("/")[-1] for line in lines]

    install.project = tmp_path
    return install


def test_pip_shows_its_progress_on_a_terminal(install):
    log = install.project / ".venv" / "bin" / "pip.log"
    terminal = Terminal(
        [str(install.project / "runtime" / "launch" / "venv.sh"), "requirements.txt"], env={"PYTHON": ""}
    )
    assert terminal.wait(60) == 0
    assert "requirements.txt" in log.read_text()
    assert "--quiet" not in log.read_text()
    assert install("--locked", "requirements.txt") == ["requirements.lock"]
    assert "--quiet" in log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["PIP_TARGET", "PIP_PREFIX", "PIP_USER"])
def test_what_pip_puts_somewhere_else_is_told_and_is_not_taken_for_installed(install, tmp_path, variable):
    shutil.rmtree(install.project / ".venv")
    (install.project / "requirements.txt").write_text("absl-py>=2.1,<3  # flags; and logging\n")
    command = [str(install.project / "runtime" / "launch" / "venv.sh"), "requirements.txt"]
    environment = {**os.environ, "PYTHON": sys.executable, "VENV_DIR": ""}
    value = "1" if variable == "PIP_USER" else str(tmp_path / "elsewhere")
    done = subprocess.run(command, env={**environment, variable: value}, capture_output=True, text=True)
    if variable != "PIP_USER":
        assert done.returncode == 2
        assert f"pip has put requirements.txt somewhere else than into {install.project}/.venv: unset " in done.stderr
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{install.project}/.venv/bin/python\n"), done.stderr
    assert subprocess.run([done.stdout.strip(), "-c", "import absl"]).returncode == 0


@pytest.mark.slow
def test_a_package_whose_installation_was_killed_is_installed_again(install):
    """Pip writes INSTALLER after all files of a package."""
    shutil.rmtree(install.project / ".venv")
    (install.project / "requirements.txt").write_text("absl-py>=2.1,<3\n")
    command = [str(install.project / "runtime" / "launch" / "venv.sh"), "requirements.txt"]
    environment = {**os.environ, "PYTHON": sys.executable, "VENV_DIR": ""}
    python = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    (packages,) = (install.project / ".venv").glob("lib/*/site-packages")
    (end,) = packages.glob("absl_py-*.dist-info/INSTALLER")
    shutil.rmtree(packages / "absl")
    end.unlink()
    (install.project / ".venv" / "installed" / "requirements.txt").unlink()
    (install.project / "link").symlink_to(install.project / ".venv")
    done = subprocess.run(command, env={**environment, "VENV_DIR": "link"}, cwd=install.project, capture_output=True)
    assert re.search(rb"the installation of absl_py-\S+\.dist-info was cut off: removing it\n", done.stderr)
    assert subprocess.run([python, "-c", "import absl.flags, pip"]).returncode == 0


@pytest.mark.parametrize("python", ["/typo/python3", "false"])
def test_a_wrong_python_costs_no_environment(install, python):
    assert install("requirements.txt") == ["requirements.txt"]
    script = install.project / "runtime" / "launch" / "venv.sh"
    environment = {**os.environ, "PYTHON": python}
    done = subprocess.run([script, "requirements.txt"], env=environment, capture_output=True, text=True)
    message = f"error: {python} is not Python 3.10 to 3.13, or cannot be run; set PYTHON=/path/to/python3\n"
    assert (done.returncode, done.stderr) == (2, message)
    assert install("requirements.txt") == [], "it is still there"


def test_a_python_that_is_killed_while_it_is_asked_costs_no_environment(install):
    """As Ctrl-C in the first moment does, or a system that is out of memory."""
    python = install.project / ".venv" / "bin" / "python"
    python.write_text("#!/bin/sh\nkill -9 $$\n")
    script = install.project / "runtime" / "launch" / "venv.sh"
    done = subprocess.run([script, "requirements.txt"], capture_output=True, text=True)
    assert done.returncode == 128 + 9
    assert "was ended by signal 9 before it reported its version: try again" in done.stderr
    assert python.exists()


def run_venv(install, **variables):
    """Run `venv.sh`, to install nothing, in an environment that it has to make."""
    (install.project / "requirements.txt").write_text("")
    script = install.project / "runtime" / "launch" / "venv.sh"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON"}  # of who runs the tests
    environment |= {name: str(value) for name, value in variables.items()}
    return subprocess.Popen(
        [script, "requirements.txt"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_environment_that_somebody_else_has_made_is_not_removed(install):
    venv = install.project / ".venv"
    (venv / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")
    (venv / "work.py").touch()
    (venv / "installed").mkdir()  # it fitted once, and this program has used it
    with run_venv(install) as run:
        said, error = run.communicate()
    assert (run.returncode, said) == (2, "")
    remedy = "remove it, or set VENV_DIR=/a/new/folder"
    assert (
        error == f"error: {venv} lacks a Python 3.10 to 3.13 with pip, and this program did not create it: {remedy}\n"
    )
    assert (venv / "work.py").exists()


@pytest.mark.slow
def test_an_environment_of_this_program_may_lie_elsewhere_and_is_made_anew_for_another_python(install):
    venv = install.project / "other" / "env"
    venv.mkdir(parents=True)
    for name in ("made-by-venv.sh", "of-another-python"):
        (venv / name).touch()
    with run_venv(install, VENV_DIR=venv) as run:
        said, error = run.communicate()
    assert (run.returncode, said) == (0, f"{venv}/bin/python\n"), error
    assert f"{venv} has no suitable Python: creating it again; if something else uses it, set VENV_DIR" in error
    assert not (venv / "of-another-python").exists()
    assert (install.project / ".venv" / "bin" / "python").read_text() == FAKE_PYTHON


@pytest.mark.slow
def test_an_environment_whose_python_an_upgrade_of_the_system_has_replaced_is_made_anew(install):
    venv = install.project / ".venv"
    (venv / "bin" / "python").write_text('#!/bin/sh\ncase "$2" in *pip*) exit 1 ;; esac\n')  # it has no packages
    (venv / "made-by-venv.sh").touch()
    with run_venv(install) as run:
        said, error = run.communicate()
    assert (run.returncode, said) == (0, f"{venv}/bin/python\n"), error
    assert (venv / "pyvenv.cfg").exists()


def test_an_environment_whose_python_is_away_for_now_is_kept(install):
    """As on a file system that is not mounted."""
    venv = install.project / ".venv"
    (venv / "made-by-venv.sh").touch()
    (venv / "bin" / "python").unlink()
    (venv / "bin" / "python").symlink_to("/not/mounted/python3")
    with run_venv(install) as run:
        said, error = run.communicate()
    assert (run.returncode, said) == (2, "")
    assert error.startswith(f"error: {venv}/bin/python cannot be run here: mount, load or reinstall what it needs")
    assert (venv / "made-by-venv.sh").exists()


@pytest.mark.slow
def test_no_file_where_it_is_called_is_taken_for_a_module(install, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pip.py").write_text("raise SystemExit(1)")
    venv = tmp_path / "real"
    for _ in range(2):
        with run_venv(install, VENV_DIR=venv) as run:
            said, error = run.communicate()
        assert (run.returncode, said) == (0, f"{venv}/bin/python\n"), error
    assert not error, "the second time, it is there"


def test_an_environment_that_another_process_makes_is_waited_for(install):
    folder = os.open(install.project, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    with run_venv(install) as run:
        assert run.stderr.readline() == f"waiting for another process that sets up {install.project}/.venv\n"
        os.close(folder)
        said, error = run.communicate()
    assert (run.returncode, said) == (0, f"{install.project}/.venv/bin/python\n"), error


def test_a_python_that_makes_no_environments_is_told_with_the_remedy(install):
    (install.project / "stdlib").mkdir()
    (install.project / "stdlib" / "ensurepip.py").write_text("raise ImportError")  # as Debian leaves it out
    with run_venv(install, VENV_DIR=install.project / "env", PYTHONPATH=install.project / "stdlib") as run:
        said, error = run.communicate()
    assert (run.returncode, said) == (2, "")
    assert re.fullmatch(r"error: \S+ cannot create an environment: apt install python3-venv .*\n", error)


def test_a_failure_of_pip_is_told_with_a_remedy(install):
    (install.project / ".venv" / "bin" / "python").write_text('#!/bin/sh\n[ "$2" != pip ]\n')
    script = install.project / "runtime" / "launch" / "venv.sh"
    environment = {**os.environ, "PYTHON": "", "TMPDIR": "/small"}  # not those of who runs the tests
    done = subprocess.run([script, "requirements.txt"], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    remedy = "if its disk is full, set VENV_DIR=/another/folder; if /small is full, set TMPDIR"
    assert done.stderr.endswith(f": {remedy}\n")


@pytest.mark.slow
def test_an_environment_that_is_half_made_is_made_anew(install):
    (install.project / ".venv" / "unfinished-by-venv.sh").touch()
    script = install.project / "runtime" / "launch" / "venv.sh"
    (install.project / "requirements.txt").write_text("")
    done = subprocess.run([script, "requirements.txt"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (install.project / ".venv" / "unfinished-by-venv.sh").exists()
    assert (install.project / ".venv" / "pyvenv.cfg").exists()


def test_requirements_are_installed_once_and_again_when_they_change(install):
    assert install("requirements.txt") == ["requirements.txt"]
    assert install("requirements.txt") == []
    (install.project / "requirements.txt").write_text("some-package>=2\n")
    assert install("requirements.txt") == ["requirements.txt"]


def test_locked_and_unlocked_versions_replace_each_other(install):
    for _ in range(2):
        assert install("requirements.txt") == ["requirements.txt"]
        assert install("--locked", "requirements.txt") == ["requirements.lock"]
        assert install("--locked", "requirements.txt") == []


@pytest.mark.parametrize("value", ["ps", "help", "locked", "no_isolation", "job_name"])
def test_the_value_of_a_flag_may_be_the_name_of_an_option(value):
    options = parse(["--model", value, "--ps", "2"])
    assert (options.ps, options.flags) == (2, ["--model", value])
    assert not options.locked


@pytest.mark.parametrize("arguments", [["--train_dir=-foo"], ["-train_dir", "-foo"]])
def test_a_train_dir_may_begin_with_a_dash(arguments):
    assert parse(arguments).train_dir == "-foo"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--job_name=ps", "--job_name is not a flag of the launcher"),
        ("--worker_hosts=a:1", "--worker_hosts is not a flag of the launcher"),
        ("--worker=3", "--worker is not a flag of the launcher: give the number of tasks with --ps=N and"),
        ("--workers=0", "flag --workers=0: 0 is not an integer in the range [1, 99]"),
        ("--ps=two", "flag --ps=two: invalid literal"),
        ("--ps", "Missing value for flag --ps (see --help)"),
        ("--max_restarts=-1", "flag --max_restarts=-1: -1 is not a non-negative integer"),
        ("--train_dir=", "flag --train_dir=: it must name a folder; omit it for a new one in runs/"),
        ("--train_dir=~/run", "flag --train_dir=~/run: only a shell expands ~"),
        ("--data_dir=", "flag --data_dir=: it must name a folder (see --help)"),
        ("--train_dir=gs://b/run", "--train_dir gs://b/run is not a folder: gs:// is not supported"),
        ("--export_dir=out[1]", "--export_dir out[1] has one of the characters * ? [ ] \\ in its path"),
    ],
)
def test_what_the_launcher_cannot_use_is_refused(capfd, argument, message):
    with pytest.raises(SystemExit, match="2"):
        parse([argument])
    assert capfd.readouterr().err.startswith(f"error: {message}")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("localedef"), reason="needs localedef")
@pytest.mark.parametrize("name", ["train_dir", "export_dir"])
def test_letters_that_python_and_tensorflow_write_in_other_ways_are_refused(tmp_path, name):
    """As those of a folder under a locale that is not UTF-8."""
    command = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(tmp_path / "en_US.ISO-8859-1")]
    if subprocess.run(command, capture_output=True).returncode > 1:  # 1 comes with warnings
        pytest.skip("this system has no sources of locales")
    environment = {**os.environ, "LOCPATH": str(tmp_path), "LC_ALL": "en_US.ISO-8859-1", "PYTHONUTF8": "0"}
    script = "import sys; from runtime.launch.options import parse; parse(sys.argv[1:])"
    for folder, status in ((b"k\xf6", 2), ("k\u00f6".encode(), 2), (b"ko", 0)):
        command = [sys.executable, "-c", script, f"--{name}=".encode() + folder]
        done = subprocess.run(command, env=environment, cwd=PROJECT, capture_output=True)
        assert done.returncode == status, done.stderr
        assert (b"in this locale, but TensorFlow as UTF-8: set LC_ALL=C.UTF-8, or use" in done.stderr) == bool(status)
