"""What the documents say comes from the code, and their links lead somewhere."""

import re
import shutil

import pytest

from benchmarks import report
from benchmarks.testbed.processes import PROJECT
from tests import documents

DOCUMENTS = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").glob("*.md"))]


@pytest.mark.parametrize(("document", "section"), documents.SECTIONS)
def test_what_is_written_from_the_code_is_up_to_date(tmp_path, document, section):
    renewed = shutil.copy(PROJECT / document, tmp_path)
    report.write_section(tmp_path / renewed, section, documents.SECTIONS[document, section]())
    stale = f"{document} is stale: run .venv/bin/python tests/documents.py"
    assert (tmp_path / renewed).read_text() == (PROJECT / document).read_text(), stale


@pytest.mark.parametrize("script", ["model.py", "mnist_input.py"])
def test_the_model_and_its_input_import_nothing_of_ours(script):
    assert documents.imported(PROJECT / script) == set()


def anchors(document):
    """Return the anchors that GitHub gives to the headings of a document."""
    headings = re.findall(r"^#+ (.*)", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_link_leads_somewhere(document):
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if not link.startswith("http"):
            path, _, anchor = link.partition("#")
            target = (document.parent / path) if path else document
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link
