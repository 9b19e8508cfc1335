"""Change single lines of the program as a person might by mistake, and see that the tests notice each change.

    .venv/bin/python tests/mutants.py [--number 60] [--seed 1] [--only runtime/updates]

A mutant is a copy of the program with one change: another comparison or sign, `and` for `or`, a condition turned
around, or a call left out that waits or checks. First all unit tests run once, and coverage.py notes which of them run
which line. For each mutant, those that run its line go first, then all that name its module, and at last the clusters,
until one fails. A mutant that survives shows a test that is missing, or a line that is not needed. It takes an hour or
two: a mutant half a minute, but all of the clusters for one that survives.
"""

import argparse
import ast
import contextlib
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

import coverage
import psutil

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from benchmarks.testbed.processes import PROJECT

OTHER = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.Add: "-",
    ast.Sub: "+",
    ast.And: "or",
    ast.Or: "and",
}
REVERSED = {ast.Lt: ">", ast.LtE: ">", ast.Gt: "<", ast.GtE: "<"}  # of times, which are never equal
NEEDED_CALL = re.compile(r"wait|sleep|join|check|close|clear|forget|look|reset|cancel")
TIMEOUT_SECS = 1500.0  # of all tests of a kind
MAX_BYTES = 16 * 2**30  # of their processes: those of all units take up to 13 GB


class Mutant(NamedTuple):
    """A change of one place."""

    path: str
    line: int
    old: str
    new: str
    start: int  # offsets in the file, of what is replaced
    end: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: `{self.old}` becomes `{self.new}`"


def find_mutants(path: pathlib.Path) -> Iterator[Mutant]:
    """Yield all mutants of a file."""
    text = path.read_text()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def replace(first: ast.expr | ast.stmt, last: ast.expr | ast.stmt, new: str) -> Mutant:
        start = starts[first.lineno - 1] + first.col_offset
        end = starts[(last.end_lineno or 0) - 1] + (last.end_col_offset or 0)
        old = text[start:end]
        return Mutant(str(path.relative_to(PROJECT)), first.lineno, old, new, start, end)

    def source(node: ast.expr) -> str:
        return ast.get_source_segment(text, node) or ""

    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OTHER:
                others = {**OTHER, **REVERSED} if re.search(r"monotonic|\bnow\b|secs", source(node)) else OTHER
                yield replace(node, node, f"{source(left)} {others[type(op)]} {source(right)}")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OTHER:
                if not re.search(r"[\"'\[{]|keys\(\)", source(node)):  # else it has no numbers
                    yield replace(node, node, f"{source(left)} {OTHER[type(op)]} {source(right)}")
            case ast.BoolOp(op=op, values=values):
                yield replace(node, node, f" {OTHER[type(op)]} ".join(f"({source(value)})" for value in values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield replace(node, node, f"({source(operand)})")
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.NamedExpr | ast.Constant):
                    yield replace(test, test, f"(not {source(test)})")
            case ast.Expr(value=ast.Call(func=function)) if NEEDED_CALL.search(source(function)):
                yield replace(node, node, "pass")


def choose(number: int, seed: int, only: str) -> list[Mutant]:
    """Return some mutants of the program, of all modules alike."""
    rng = random.Random(seed)
    found = [[*find_mutants(path)] for path in sorted((PROJECT / only).rglob("*.py"))]
    in_order = [mutant for of_file in found for mutant in rng.sample(of_file, len(of_file))]
    return rng.sample(in_order, min(number, len(in_order)))


def find_tests_of_lines(folder: pathlib.Path) -> dict[tuple[str, int], set[str]]:
    """Run all unit tests in `folder`, and return which of them run a line, by its path and number."""
    data = folder / ".coverage"
    for turn in find_turns():
        measured = ["--cov=runtime", "--cov-context=test", "--cov-append", "--cov-report="]
        command = [sys.executable, "-m", "pytest", "-q", "--numprocesses=2", *measured, *turn]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"the tests fail without any change:\n{done.stdout[-4000:]}")
    tests: dict[tuple[str, int], set[str]] = {}
    found = coverage.CoverageData(str(data))
    found.read()
    for file in found.measured_files():
        for line, contexts in found.contexts_by_lineno(file).items():
            names = {context.rpartition("|")[0] for context in contexts} - {""}
            tests[str(pathlib.Path(file).relative_to(folder)), line] = names
    return tests


def find_turns() -> list[list[str]]:
    """Return the unit tests in the turns of tests/run, which says why."""
    patterns = re.findall(r"tests/test_\[.*?\]\*\.py", (PROJECT / "tests" / "run").read_text())
    return [sorted(str(file.relative_to(PROJECT)) for file in PROJECT.glob(pattern)) for pattern in patterns]


def make_stages(mutant: Mutant, tests: dict[tuple[str, int], set[str]]) -> list[list[str]]:
    """Return which tests to run, one stage after the other."""
    lines = range(mutant.line, mutant.line + mutant.old.count("\n") + 1)
    run_it = sorted(set().union(*(tests.get((mutant.path, line), ()) for line in lines)))
    module = re.escape(mutant.path.removesuffix(".py").replace("/", "."))
    package, _, name = module.rpartition(r"\.")
    names_it = re.compile(rf"\b{module}\b|\bfrom {package} import .*\b{name}\b")
    name_it = [unit for turn in find_turns() for unit in turn if names_it.search((PROJECT / unit).read_text())]
    others = [] if run_it else find_turns()  # those that run it in other processes
    return [stage for stage in (run_it, name_it, *others, ["tests/clusters"]) if stage]


def find_killer(mutant: Mutant, folder: pathlib.Path, stages: list[list[str]]) -> str:
    """Return the test that fails, in a copy of the project in `folder`; "" if none does."""
    path = folder / mutant.path
    text = path.read_text()
    path.write_text(text[: mutant.start] + mutant.new + text[mutant.end :])
    try:
        return next(filter(None, (find_failure(stage, folder) for stage in stages)), "")
    finally:
        path.write_text(text)


def find_failure(stage: list[str], folder: pathlib.Path) -> str:
    """Run some tests in `folder`, and return the one that fails; "" if none does.

    A mutant may loop for ever, and write into a log that a test keeps. So the time and the memory of tests are limited.
    """
    chosen, printed = folder / ".chosen_tests", folder / ".printed"  # a command line may not be long enough
    chosen.write_text("\n".join(stage))
    command = [sys.executable, "-m", "pytest", "-q", "--exitfirst", "--numprocesses=2", f"@{chosen}"]
    began_at = time.monotonic()
    with printed.open("w") as file, psutil.Popen(command, cwd=folder, stdout=file, stderr=file) as process:
        while process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):  # one has just ended
                tree = [process, *process.children(recursive=True)]
                num_bytes = sum(of_tree.memory_info().rss for of_tree in tree)
                if time.monotonic() - began_at > TIMEOUT_SECS or num_bytes > MAX_BYTES:
                    for of_tree in tree:
                        of_tree.kill()
                    return "a test that never ends"
            time.sleep(1)
    if not process.returncode:
        return ""
    output = printed.read_text()
    names = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    headings = re.findall(r"^_+ (test_\S+)", output, re.MULTILINE)
    return [*names, *headings, f"pytest, with {process.returncode}"][0]


def main(arguments: list[str] | None = None) -> None:
    """Try mutants, and print who has noticed each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="runtime", help="a folder, such as runtime/updates")
    options = parser.parse_args(arguments)
    num_noticed = 0
    with tempfile.TemporaryDirectory() as parent:
        folder = pathlib.Path(parent) / "copy"
        subprocess.run(["git", "clone", "--quiet", str(PROJECT), str(folder)], check=True)
        (folder / ".venv").symlink_to(sys.prefix)
        shutil.copytree(PROJECT / "runtime", folder / "runtime", dirs_exist_ok=True)
        tests = find_tests_of_lines(folder)
        chosen = choose(options.number, options.seed, options.only)
        for mutant in chosen:
            killer = find_killer(mutant, folder, make_stages(mutant, tests))
            print(f"{mutant}: {killer or 'SURVIVES'}", flush=True)
            num_noticed += bool(killer)
        print(f"{num_noticed} of {len(chosen)} noticed")


if __name__ == "__main__":
    main()
