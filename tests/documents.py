"""Write the sections of the documents that come from the code: .venv/bin/python tests/documents.py."""

import ast
import html
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from importlinter.api import read_configuration

import distributed
from benchmarks import report
from benchmarks.testbed.processes import PROJECT
from runtime.data import download
from runtime.process import environment
from tests.ported import KINDS
from tests.test_placement import bytes_by_ps

PLACEMENTS = (
    ("--ps_strategy=round_robin",),
    ("--ps_strategy=greedy",),
    ("--ps_strategy=greedy", "--partition_bytes=100000"),
)
# What the README quotes, and what stands for the end of a row: a long line takes several.
OUTPUT = ((r"test accuracy \S+ \(.+? examples/s", ""), (r"report +\S+", " "))
PROMISE = re.compile(r"<!-- promise: (\S+) -->")  # it follows the words that make it
LOW = '%%{init: {"flowchart": {"rankSpacing": 16, "padding": 6}}}%%'  # room for many layers


def make_flags():
    """Return a table of all flags, in the groups and the order of `runtime/roles/flags.py`, and of the user's files."""
    rows = []
    # The first flag of a group follows the docstring of the function that defines the group.
    pattern = r'^(?: +"""Define (.+)\."""\n)? +flags\.DEFINE_(\w+)\(\s*"(\w+)"'
    found = re.findall(pattern, (PROJECT / "runtime/roles/flags.py").read_text(), re.MULTILINE)
    for what, file in (("model", "model.py"), ("data", "mnist_input.py")):
        of_file = re.findall(r'^flags\.DEFINE_(\w+)\("(\w+)"', (PROJECT / file).read_text(), re.MULTILINE)
        found += [("" if number else f"the {what}, in `{file}`", *flag) for number, flag in enumerate(of_file)]
    for group, kind, name in found:
        if group:
            rows.append((f"**{group[0].upper()}{group[1:]}**", "", ""))
        if kind != "alias":
            flag = distributed.FLAGS[name]
            names = [
                name,
                *(other for other in distributed.FLAGS if distributed.FLAGS[other].help == f"Alias for --{name}."),
            ]
            rows.append((", ".join(f"`--{name}`" for name in names), _default(flag), _meaning(flag)))
    return report.make_table(("flag", "default", "meaning"), rows)


def _default(flag):
    if flag.default is None:
        return "none"
    if flag.default == "":
        return "empty"
    if flag.default == download.default_data_dir():
        return "`~/.cache/distributed-mnist`"
    if isinstance(flag.default, bool):
        return str(flag.default).lower()
    if isinstance(flag.default, int | float):
        return f"{flag.default:g}"
    return f"`{flag.default if isinstance(flag.default, str) else ','.join(flag.default)}`"


def _meaning(flag):
    if not hasattr(flag.parser, "enum_values"):
        return flag.help
    *values, last = (f"`{value}`" for value in flag.parser.enum_values)
    return f"{', '.join(values)} or {last}: {flag.help.partition('>: ')[2]}"  # absl puts <mlp|cnn>: before the help


def make_placement():
    """Return a table of the bytes on each of two and of four ps tasks."""
    rows = []
    for flags in PLACEMENTS:
        cells = [
            ", ".join(f"{size:,}".replace(",", " ") for size in bytes_by_ps(num_ps, "--model=cnn", *flags))
            for num_ps in (2, 4)
        ]
        rows.append((f"`{' '.join(flags)}`", *cells))
    return report.make_table(("", "2 ps", "4 ps"), rows)


def make_rooms():
    """Return a table of the rooms and modules of `runtime/`, each with the first line of its docstring."""
    rows = []
    for path in sorted((PROJECT / "runtime").iterdir(), key=lambda path: (path.is_file(), path.name)):
        source = path / "__init__.py" if path.is_dir() else path
        if source.suffix == ".py" and source.exists() and path.name != "__init__.py":
            summary = ast.get_docstring(ast.parse(source.read_text())).splitlines()[0]
            rows.append((f"`runtime/{path.name}{'/' if path.is_dir() else ''}`", summary))
    return report.make_table(("room", "what it is for"), rows)


def make_imports():
    """Return the layers of rooms, the highest first, as a picture of Mermaid."""
    contracts = read_configuration(str(PROJECT / "pyproject.toml"))["contracts_options"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    names = ["distributed.py", *(", ".join(re.split(r"\s*\|\s*", layer)) for layer in layers)]
    boxes = [f'    layer{number}["{text}"]' for number, text in enumerate(names)]
    arrows = f"    {' --> '.join(f'layer{number}' for number in range(len(names)))}"
    return "\n".join(["```mermaid", LOW, "flowchart TD", *boxes, arrows, "```"])


def make_kinds():
    """Return a table of the kinds of scripts that the tests train, and what their users had to change."""
    rows = [(f"[{kind.script}](ported/{kind.module}.py)", kind.changed) for kind in KINDS.values()]
    return report.make_table(("a script of this kind", "what changes, besides pasting the function"), rows)


def make_output():
    """Return the lines that the recording of the README ends with: the result, and where the report lies."""
    picture = (PROJECT / "docs" / "display-80.svg").read_text().partition('<g class="frame"')[0]  # the last moment
    rows = re.findall(r'<text [^>]*y="([\d.]+)"[^>]*>(.*?)</text>', picture, re.DOTALL)
    text = "".join(html.unescape(text) for _, text in sorted(rows, key=lambda row: float(row[0])))
    text = text.replace("\xa0", " ")
    lines = (re.search(pattern, text.replace("\n", end))[0] for pattern, end in OUTPUT)
    return "\n".join(["```text", *lines, "```"])


def find_promises():
    """Return the promises of each page that makes some, such as `docs/data.md`, in their order there."""
    pages = {path.relative_to(PROJECT): PROMISE.findall(path.read_text()) for path in sorted(PROJECT.glob("docs/*.md"))}
    return {str(page): promises for page, promises in pages.items() if promises}


def find_tests_of_promises():
    """Return the path below `tests/` and the name of each test of each promise, by what its decorator says."""
    found = {}
    for path in sorted((PROJECT / "tests").rglob("test_*.py")):
        for test in ast.walk(ast.parse(path.read_text())):
            for mark in test.decorator_list if isinstance(test, ast.FunctionDef) else []:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promises":
                    for promise in map(ast.literal_eval, mark.args):
                        found.setdefault(promise, []).append((str(path.relative_to(PROJECT / "tests")), test.name))
    return found


def make_promises():
    """Return a table of what the pages promise, and of the tests that would fail without."""
    rows, tests = [], find_tests_of_promises()
    for page, promises in find_promises().items():
        rows.append((f"**[{page}](../{page})**", ""))
        for promise in promises:
            links = [f"[{name[5:].replace('_', ' ')}]({path})" for path, name in tests.get(promise, [])]
            rows.append((f"`{promise}`", "; ".join(links)))
    return report.make_table(("promise", "tests"), rows)


SECTIONS = {
    ("README.md", "output"): make_output,
    ("README.zh-CN.md", "output"): make_output,
    ("tests/README.md", "kinds"): make_kinds,
    ("tests/README.md", "promises"): make_promises,
    ("docs/flags.md", "flags"): make_flags,
    ("benchmarks/README.md", "placement"): make_placement,
    ("CONTRIBUTING.md", "rooms"): make_rooms,
    ("CONTRIBUTING.md", "imports"): make_imports,
}


def main():
    for (document, name), make in SECTIONS.items():
        report.write_section(PROJECT / document, name, make())


if __name__ == "__main__":
    environment.choose_behavior()
    main()
