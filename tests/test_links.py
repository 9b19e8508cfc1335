"""What the documents show is real: links, commands, flags, messages and lines of logs."""

import ast
import functools
import inspect
import pathlib
import re
import shlex
import string
import subprocess
import sys
import tempfile
from typing import NamedTuple

import pytest

import distributed
from benchmarks import compare, outcomes
from benchmarks.__main__ import BENCHMARKS, load
from tests import deployed, forked
from tests.clusters.test_long_programs import SMALLEST

PROJECT = pathlib.Path(__file__).parents[1]
README = PROJECT / "README.md"
PAGES = sorted((PROJECT / "docs").glob("*.md"))
FOLDERS = [
    *(PROJECT / "examples").glob("*/README.md"),
    PROJECT / "benchmarks" / "README.md",
    PROJECT / "tests" / "README.md",
]
TOP = [PROJECT / name for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOCUMENTS = [*TOP, *PAGES, *sorted(FOLDERS)]
TEACHING = {
    "tutorial.md",
    "tutorial.zh-CN.md",
    "lab.md",
    "lab.zh-CN.md",
    "teaching.md",
    "your-own.md",
    "porting.md",
    "constructs.md",
}  # may show code and output
MAX_README_LINES, MAX_PAGE_LINES, MAX_WORDS = 152, 200, 15_000
NUM_PIECES = 2  # a message may be put together from this many string literals between two variable parts

FENCE = re.compile(r"^```(.*)\n((?s:.*?))^```$", re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)  # nobody reads it
LANGUAGES = {"sh", "text", "json", "yaml", "python", "mermaid", "diff"}
COMMAND_WORDS = (
    "./",
    "python ",
    ".venv/",
    "iptables ",
    "ip6tables ",
    "ps -",
    "pkill ",
)  # inline code that begins like this is a command
LOG_LINE = re.compile(r"^(?:run_local_cluster\.sh|(?:ps|worker) \d+): (.*)$", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FLAG = re.compile(r"(?<![\w-])--([a-z]\w*)")
OF_OTHERS = re.compile(
    r".*(?:ip6?tables|tensorboard\.main|tf_upgrade_v2|\bpip\b|\buv\b|docker|kubectl|scancel|sbatch --|\$run"
    r" |--volume|install --mode).*"
)  # lines whose flags are not ours


def commands_in(block):
    """Return the commands in a block of shell code, without those that give a variable its value."""
    commands, variables = [], {}
    for line in block.replace("\\\n", "").splitlines():
        words = shlex.split(string.Template(line).safe_substitute(variables), comments=True)
        if len(words) == 1 and (assignment := re.fullmatch(r"(\w+)=(.*)", words[0])):
            variables[assignment[1]] = assignment[2]
        elif words:
            commands.append(" ".join(words))
    return commands


class Executed(NamedTuple):
    """A command that is run here, by the Python of these tests."""

    status: int = 0

    def check(self, command):
        program, *arguments = command.split()
        if "python" in program:
            process = forked.run(*arguments)
        else:
            process = subprocess.run([program, *arguments], cwd=PROJECT, capture_output=True, text=True, timeout=120)
        assert process.returncode == self.status, process.stderr
        assert process.stdout


class RunBy(NamedTuple):
    """A command that a script runs, or a test; `text` is a part of that script, or the head of the test."""

    text: str

    def check(self, command):
        tests = set((PROJECT / "tests").rglob("test_*.py")) - {pathlib.Path(__file__)}
        runners = [PROJECT / ".ci" / "run", PROJECT / "tests" / "run", *tests]
        assert any(self.text in runner.read_text() for runner in runners), f"nothing runs {command!r} any more"


class Upgraded(NamedTuple):
    """TensorFlow's program that rewrites an old script; it is installed beside Python."""

    def check(self, command):
        program, *arguments = command.split()
        with tempfile.TemporaryDirectory() as folder:
            old, new = pathlib.Path(folder, "old.py"), pathlib.Path(folder, "new.py")
            old.write_text("import tensorflow as tf\nsaver = tf.train.Saver()\n")
            subprocess.run(
                [pathlib.Path(sys.executable).parent / pathlib.Path(program).name, *arguments],
                cwd=folder,
                check=True,
                capture_output=True,
            )
            assert "tf.compat.v1.train.Saver()" in new.read_text()


class Deployed(NamedTuple):
    """A command for Kubernetes: the files and objects that it names are there.

    Nothing here has a control plane. In tests/clusters/test_containers.py podman does what a node does for them all.
    """

    def check(self, command):
        files = {str(path.relative_to(PROJECT)): path.read_text() for path in (PROJECT / "deploy").rglob("*.yaml")}
        assert set(re.findall(r"deploy/\S+", command)) <= files.keys()
        objects = re.findall(r"\b(?:mnist|worker)-[a-z0-9]+", command)
        assert [name for name in objects if not re.search(rf"\b{name}\b", "".join(files.values()))] == []


LAUNCHED = RunBy("def test_each_command_of_the_pages_that_only_trains_runs(")
LONG = RunBy("def test_a_program_that_takes_long_runs_for_a_moment(")
BY_HAND = RunBy("def test_the_tasks_that_the_readme_starts_by_hand_train(")
TASKS = ("--job_name=ps --task_index=0", "--job_name=worker --task_index=0", "--job_name=worker --task_index=1")
CHAOS = "tests/chaos.py --mode asynchronous synchronous backup_workers local_steps --minutes 4 --write"
ENCRYPTED = RunBy("def test_who_is_outside_can_neither_connect_nor_read(")
BOARD = "runtime/launch/tensorboard"
FIREWALL = (
    "iptables -I INPUT ! -i lo -p tcp --dport 2222 ! -s 10.0.0.0/24",
    "ip6tables -I INPUT ! -i lo -p tcp --dport 2222",
)
SGD = "--optimizer=sgd --learning_rate=0.5"
HELD = RunBy("def test_a_run_of_the_lab_holds_")
STOPPED = RunBy("def test_who_stops_a_worker_in_the_lab_")
DEMONSTRATED = RunBy("def test_the_demonstration_of_the_readme_")
LAB = {
    "--train_steps=20000 --save_checkpoint_secs=5 --train_dir=runs/lab": HELD,
    "--train_steps=200000 --save_checkpoint_secs=5 --train_dir=runs/killed": DEMONSTRATED,
    "--train_steps=200000 --train_dir=runs/async": LAUNCHED,
    "--train_steps=100000 --sync_replicas --train_dir=runs/sync": STOPPED,
    "--train_steps=200000 --max_staleness=8 --train_dir=runs/bounded": STOPPED,
    f"--workers=1 {SGD} --train_steps=5000 --train_dir=runs/one": LAUNCHED,
    f"--workers=2 {SGD} --train_steps=5000 --train_dir=runs/two": LAUNCHED,
    f"--workers=8 {SGD} --train_steps=5000 --train_dir=runs/eight": LAUNCHED,
    f"--workers=4 {SGD} --train_steps=5000 --train_dir=runs/h1": LAUNCHED,
    f"--workers=4 {SGD} --train_steps=5000 --local_steps=16 --train_dir=runs/h16": LAUNCHED,
    f"--workers=4 {SGD} --train_steps=5000 --local_steps=64 --train_dir=runs/h64": LAUNCHED,
    f"--workers=4 {SGD} --train_steps=1250 --local_steps=64 --sync_replicas --train_dir=runs/averaged": LAUNCHED,
    "--ps=2 --train_steps=10000 --train_dir=runs/round_robin": HELD,
    "--ps=2 --train_steps=10000 --ps_strategy=greedy --partition_bytes=80000 --train_dir=runs/even": HELD,
}
SERVER = (  # what a lecturer and each student type
    "sudo mkdir /srv/mnist /srv/venv /srv/cache && sudo chown $USER /srv/mnist /srv/venv /srv/cache",
    "git clone ADDRESS /srv/mnist",
    "cd /srv/mnist",
    "export VENV_DIR=/srv/venv/mnist XDG_CACHE_HOME=/srv/cache",
    "ln -s /srv/venv/mnist .venv",
    "cp -r /srv/mnist mnist",
    "cd mnist",
    "export XDG_CACHE_HOME=/srv/cache",
)
CLASSIC = ".venv/bin/python examples/classic/mnist_replica.py"
CLASSIC_TASKS = ("--job_name=ps", "--job_name=worker --task_index=0", "--job_name=worker --task_index=1")
WORD_LISTS = (
    "wcatalan wdanish wdutch wamerican wesperanto wfaroese wfrench wgalician-minimos wngerman witalian wnorwegian"
    " wpolish wportuguese wspanish wswedish"
)

OWN = [command for block in deployed.blocks("With your own model") for command in commands_in(block)]

# Every command that a document shows, and how it is exercised.
EXERCISED = {
    "git clone ADDRESS distributed-mnist": RunBy("def test_a_clone_has_what_the_readme_runs("),
    "cd distributed-mnist": RunBy("def test_a_clone_has_what_the_readme_runs("),
    "./run_local_cluster.sh": RunBy("def test_one_command_trains_mnist_and_prints_the_accuracy("),
    "./run_local_cluster.sh --help": Executed(),
    "./run_local_cluster.sh --train_steps=200000 --save_checkpoint_secs=5": DEMONSTRATED,
    **{f"{CLASSIC} {flags}": RunBy("def test_the_classic_script_learns_") for flags in CLASSIC_TASKS},
    "ps -eo pid,comm,rss,pcpu | grep -E  (ps|worker)-[0-9]": RunBy("def kill(launcher, name):"),
    **{
        f"./run_local_cluster.sh {' '.join(flags)}": LAUNCHED
        for flags in (compare.recommended_flags(), outcomes.CNN_FLAGS)
    },
    "./run_local_cluster.sh --replication=in_graph": LAUNCHED,
    "./run_local_cluster.sh --max_staleness=8": LAUNCHED,
    "./run_local_cluster.sh --eval_every_secs=1 --stop_at_accuracy=0.97 --train_steps=1000000": LAUNCHED,
    "./run_local_cluster.sh --model=cnn --export_dir=exported": LAUNCHED,
    ".venv/bin/python examples/digits/predict.py --model exported four.png seven.jpg": RunBy(
        "def assert_pictures_are_classified("
    ),
    "./tests/run": RunBy("./tests/run"),
    "./tests/run --quick": RunBy("--quick"),
    "./tests/run --locked": RunBy("./tests/run --locked"),
    "./tests/run tests/test_updates.py": RunBy('pytest "$@"'),
    "git ls-files *.py *.sh | grep -Ev ^(tests|benchmarks|examples)/ | xargs cat | wc -l": RunBy(
        "def test_the_command_that_counts_lines_works("
    ),
    **{
        f".venv/bin/python distributed.py {flagfile}{task}": BY_HAND
        for flagfile in ("", "--flagfile=cluster.flags ")
        for task in TASKS
    },
    ".venv/bin/python distributed.py --job_name=evaluator --train_dir=/shared/run1": RunBy(
        "def test_an_evaluator_evaluates_"
    ),
    ".venv/bin/python distributed.py --help": Executed(status=1),  # as absl has it
    ".venv/bin/python distributed.py --version": Executed(),
    "sbatch deploy/slurm.sbatch": RunBy("def test_a_job_survives_a_kill_and_a_requeue_and_learns("),
    "sbatch deploy/slurm.sbatch --train_dir=runs/slurm-JOB": RunBy("one_that_is_cancelled_can_go_on("),
    "scancel JOB": RunBy("one_that_is_cancelled_can_go_on("),
    "./run_local_cluster.sh --prepare": RunBy("def test_a_machine_is_prepared_without_training("),
    "sbatch --partition=short --account=physics --ntasks=12 deploy/slurm.sbatch --train_steps=20000": RunBy(
        'options=["--partition=short", "--account=physics", "--ntasks=12"]'
    ),
    "docker build --file deploy/Dockerfile --tag mnist:1 .": RunBy("def _image(testrun_uid):"),
    **{command: RunBy('deployed.blocks("With your own model")') for command in OWN},
    **{
        command: RunBy("def test_compose_brings_a_cluster_up_")
        for block in deployed.blocks("Docker Compose")
        for command in commands_in(block)
    },
    **{
        f"kubectl {command}": Deployed()
        for command in (
            "apply --filename deploy/kubernetes/train-dir.yaml",
            "apply --filename deploy/kubernetes/jobs.yaml",
            "delete --cascade=foreground job/mnist-ps job/mnist-worker configmap/mnist",
            "apply --filename deploy/kubernetes/results.yaml",
            "wait --for=condition=Ready --timeout=10m pod/mnist-results",
            "cp mnist-results:/mnt/train results",
            "delete pod mnist-results",
        )
    },
    "(umask 077 && wg genkey | tee /etc/wireguard/mnist.key) | wg pubkey": ENCRYPTED,
    "install --mode=600 deploy/wireguard.conf /etc/wireguard/mnist.conf": ENCRYPTED,
    "wg-quick up mnist": ENCRYPTED,
    **{f"{rule} -j DROP": RunBy("def test_the_firewall_rules_") for rule in FIREWALL},
    f".venv/bin/python {CHAOS}": RunBy("def test_random_faults_"),
    ".venv/bin/python tests/soak.py --seed 1 2 --minutes 20 --write": RunBy('"soak.py"), "--seed=1"'),
    "./run_local_cluster.sh --profile_steps=1000:1100 --train_dir=runs/traced": LAUNCHED,
    ".venv/bin/python -m runtime.trace TRAIN_DIR": RunBy('"-m", "runtime.trace"'),
    **{f"pkill {name}": RunBy("def kill(launcher, name):") for name in ("-9 ps-0", "-9 worker-1", "'^(worker|ps)-'")},
    "pkill -f runtime/launch": RunBy('"pgrep", "-f", "runtime/launch"'),
    "pkill -f mnist_replica": RunBy("def test_the_classic_script_learns_"),
    ".venv/bin/tf_upgrade_v2 --infile old.py --outfile new.py": Upgraded(),
    "ps -e": RunBy("def kill(launcher, name):"),
    "pkill -STOP worker-1; sleep 15; pkill -CONT worker-1": RunBy("def kill(launcher, name):"),
    **{f"./run_local_cluster.sh {flags}": how for flags, how in LAB.items()},
    **{command: RunBy("def test_one_installation_serves_many_copies(") for command in SERVER},
    "./run_local_cluster.sh --user_dir=mine --train_steps=1000": RunBy("def test_a_ported_script_trains_"),
    ".venv/bin/python distributed.py --job_name=worker --task_index=0 --user_dir=mine --train_dir=old": RunBy(
        "def test_a_ported_script_trains_"
    ),
    "./run_local_cluster.sh --user_dir=mine --train_steps=500 --issync": RunBy("def test_a_ported_script_trains_"),
    ".venv/bin/pip install --no-deps tf_keras==2.21.*": RunBy("def test_a_ported_script_trains_"),
    "sudo apt-get install dataset-fashion-mnist": RunBy("packages+=(dataset-fashion-mnist)"),
    "./run_local_cluster.sh --user_dir=examples/fashion_mnist --data_dir=/usr/share/datasets/fashion-mnist": RunBy(
        "def test_two_files_of_a_user_train_"
    ),
    **{
        f"./run_local_cluster.sh --user_dir=own --data_dir=own/data {flags}": RunBy(
            "def test_the_two_files_that_the_page_shows_train("
        )
        for flags in ("--workers=1 --train_steps=200", "--train_steps=2000")
    },
    "sudo apt-get install adwaita-icon-theme": RunBy("packages+=(adwaita-icon-theme)"),
    "./run_local_cluster.sh --user_dir=examples/pictures --data_dir=/usr/share/icons/Adwaita/48x48"
    " --train_steps=2000": RunBy("def test_pictures_of_any_size_"),
    f"sudo apt-get install {WORD_LISTS}": RunBy(f"for words in {WORD_LISTS.partition(' wnorwegian')[0]} "),
    "./run_local_cluster.sh --user_dir=examples/flights --data_dir=flights --learning_rate=0.05"
    " --train_steps=6000": RunBy("def test_wide_and_deep_rank_late_flights_"),
    "./run_local_cluster.sh --user_dir=examples/languages --data_dir=/usr/share/dict --optimizer=sgd"
    " --learning_rate=10 --lr_schedule=one_cycle --local_steps=16 --train_steps=32000 --export_dir=languages": RunBy(
        "def test_a_table_tells_the_language_of_a_word_"
    ),
    ".venv/bin/python examples/languages/predict.py --model languages Schmetterling papillon": RunBy(
        '"languages", "Schmetterling"'
    ),
    ".venv/bin/python -m runtime.report TRAIN_DIR": RunBy('"-m", "runtime.report"'),
    "./run_local_cluster.sh --tensorboard --eval_every_secs=2": RunBy("def test_tensorboard_shows_the_run_"),
    f".venv/bin/python -m pip install -r {BOARD}.txt": Executed(),
    f"runtime/launch/venv.sh {BOARD}.txt": RunBy(f'{BOARD}.txt)"'),
    f".venv/bin/python -m pip download -d wheels -r requirements.txt -r {BOARD}.txt": LONG,
    ".venv/bin/python -m tensorboard.main --logdir runs": RunBy('" -m tensorboard.main " in of.command'),
    ".venv/bin/python tests/documents.py": RunBy("def test_what_is_written_from_the_code_is_up_to_date("),
    ".venv/bin/python tests/record.py": LONG,
    "NO_COLOR=1 ./run_local_cluster.sh": RunBy("def test_there_are_plain_lines_where_no_display_is_wanted("),
    ".venv/bin/python -m pip install -r benchmarks/requirements.txt": LONG,
    ".venv/bin/python -m benchmarks": Executed(),
    **{f".venv/bin/python -m benchmarks {name}": LONG for name in SMALLEST},
    ".venv/bin/python examples/convert.py --shards 16": RunBy('"examples/convert.py", *flags'),
    "./run_local_cluster.sh --data_dir=$HOME/.cache/distributed-mnist/tfrecord": LAUNCHED,
}


def prose(document):
    """Return a document without its blocks of code."""
    return FENCE.sub("", document.read_text())


def inline_code(text):
    """Return what stands in backticks."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]


def commands_shown(document):
    """Return the commands in blocks of shell code, after the prompts in blocks of text, and in inline code."""
    commands = [code for code in inline_code(prose(document)) if code.startswith(COMMAND_WORDS) and " " in code]
    for language, block in FENCE.findall(document.read_text()):
        if language == "text":
            commands += re.findall(r"^\$ (.*)$", block, re.MULTILINE)
        if language == "sh":
            commands += commands_in(block)
    return commands


def anchors(document):
    """Return the anchors that GitHub makes of a document's headings."""
    names = []
    for heading in re.findall(r"^#+ +(.*?) *$", prose(document), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        same = sum(re.fullmatch(re.escape(anchor) + r"(-\d+)?", other) is not None for other in names)
        names.append(f"{anchor}-{same}" if same else anchor)
    return names


@functools.cache
def literals():
    """Return all text that the program may print, with `…` for what varies; docstrings are left out."""
    texts = [(PROJECT / name).read_text() for name in ("run_local_cluster.sh", "runtime/launch/venv.sh")]
    sources = [PROJECT / "distributed.py", PROJECT / "mnist_input.py", *(PROJECT / "runtime").rglob("*.py")]
    for source in sources:
        tree = ast.parse(source.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                texts.append(re.sub(r"%[.\d]*[a-z]", "…", node.value))
    return texts


def num_pieces(fragment):
    """Return into how few runs of words `fragment` can be cut so that each stands in one of the literals."""
    words, count = fragment.split(), 0
    while words:
        lengths = range(len(words), 0, -1)
        pieces = (" ".join(words[:n]).strip(" ():,") for n in lengths)
        length = next((n for n, piece in zip(lengths, pieces, strict=True) if any(piece in t for t in literals())), 0)
        if not length:
            return sys.maxsize
        words, count = words[length:], count + 1
    return count


def messages_explained():
    """Return the messages of this program that the troubleshooting page explains."""
    page = (PROJECT / "docs" / "troubleshooting.md").read_text()
    ours = page[: page.index("## Messages of TensorFlow")]
    return [
        message for cell in re.findall(r"^\| ([^|]*`[^|]*) \|", ours, re.MULTILINE) for message in inline_code(cell)
    ]


def lines_quoted(document):
    """Return what a document quotes of logs, without the names of the tasks."""
    blocks = [block for language, block in FENCE.findall(document.read_text()) if language == "text"]
    return [line for block in blocks for line in LOG_LINE.findall(block)]


def label(document):
    return str(document.relative_to(PROJECT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=label)
def test_every_link_leads_somewhere(document):
    for link in LINK.findall(prose(document)):
        path, _, anchor = link.partition("#")
        if ":" in path:
            assert path.startswith("https://"), link
            continue
        target = document.parent / path if path else document
        assert target.exists(), f"{link}: there is no such file"
        assert not anchor or anchor in anchors(target), f"{link}: no heading there has this anchor"


@pytest.mark.parametrize("document", DOCUMENTS, ids=label)
def test_every_block_of_code_says_its_language(document):
    assert {language for language, _ in FENCE.findall(document.read_text())} <= LANGUAGES
    assert re.findall(r"\n\n    .*", prose(document)) == [], "code stands between fences, not behind four spaces"


@pytest.mark.parametrize("document", DOCUMENTS, ids=label)
def test_no_table_is_torn(document):
    assert re.findall(r"^\|.*\n\n(\|.*)\n(?!\| ---)", prose(document), re.MULTILINE) == [], (
        "a table of its own has a head"
    )


@pytest.mark.parametrize("command", sorted({c for document in DOCUMENTS for c in commands_shown(document)}))
def test_every_command_works(command):
    assert command in EXERCISED, "a new command: add to EXERCISED how it is exercised"
    EXERCISED[command].check(command)


def test_every_exercised_command_is_still_shown():
    assert EXERCISED.keys() - {c for document in DOCUMENTS for c in commands_shown(document)} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=label)
def test_every_flag_exists(document):
    known = {*distributed.FLAGS, "help", "constraints", "flagfile"}
    for script in ("run_local_cluster.sh", "tests/run"):
        known.update(FLAG.findall((PROJECT / script).read_text()))
    programs = [PROJECT / name for name in ("tests/chaos.py", "tests/soak.py", "examples/convert.py")]
    for benchmark in BENCHMARKS.values():
        known.update(inspect.signature(load(benchmark)).parameters)
    for script in [*programs, *(PROJECT / "benchmarks").rglob("*.py")]:
        known.update(re.findall(r'add_argument\(\s*"--(\w+)"', script.read_text()))
        known.update(re.findall(r'DEFINE_\w+\(\s*"(\w+)"', script.read_text()))
    assert set(FLAG.findall(OF_OTHERS.sub("", document.read_text().replace("\\\n", "")))) - known == set()


@pytest.mark.parametrize("message", messages_explained())
def test_every_message_explained_is_one_of_the_program(message):
    for fragment in message.split("…"):
        assert num_pieces(fragment) <= NUM_PIECES, f"no string in the program has {fragment!r}"


@pytest.mark.parametrize("line", sorted({line for document in DOCUMENTS for line in lines_quoted(document)}))
def test_every_line_of_a_log_is_one_of_the_program(line):
    for fragment in re.sub(r"(?:\b(?:ps|worker) )?\d[\d.]*", "…", line).split("…"):
        assert num_pieces(fragment) <= NUM_PIECES, f"no string in the program has {fragment!r}"


def test_every_page_is_at_most_two_links_from_the_readme():
    pages = {README}
    for _ in range(2):
        links = {(page, link.partition("#")[0]) for page in pages for link in LINK.findall(prose(page))}
        pages |= {(page.parent / path).resolve() for page, path in links} & {*DOCUMENTS}
    assert [label(document) for document in DOCUMENTS if document not in pages] == []


def test_the_readme_and_the_pages_are_short():
    text = README.read_text()
    assert len(text.splitlines()) <= MAX_README_LINES
    counted = [document for document in [*TOP, *PAGES] if document.name not in TEACHING]
    texts = [COMMENT.sub("", document.read_text()) for document in counted]
    assert sum(len(re.findall(r"\S*\w\S*", text)) for text in texts) <= MAX_WORDS, "the lines of a table are no words"
    assert [label(page) for page in PAGES if len(page.read_text().splitlines()) > MAX_PAGE_LINES] == []
