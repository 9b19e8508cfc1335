"""GitHub can draw the pictures of the documents, which Mermaid describes."""

import pytest

from tests import mermaid
from tests.test_links import DOCUMENTS, FENCE, label

PICTURES = {
    f"{label(document)}, picture {number}": text
    for document in DOCUMENTS
    for number, (language, text) in enumerate(FENCE.findall(document.read_text()))
    if language == "mermaid"
}

needs_mermaid = pytest.mark.skipif(mermaid.IS_MISSING, reason="needs chromium and npm (Debian: apt-get install both)")


@needs_mermaid
@pytest.mark.parametrize("is_dark", [False, True])
def test_every_picture_is_drawn(tmp_path, is_dark):
    assert len(PICTURES) >= 8
    assert mermaid.find_errors(mermaid.write_page(tmp_path / "pictures.html", PICTURES, is_dark)) == {}


@needs_mermaid
def test_a_picture_that_cannot_be_drawn_is_told(tmp_path):
    pictures = {"good": "flowchart LR\n    ps --> worker\n", "bad": "flowchart LR\n    ps --> \n"}
    assert list(mermaid.find_errors(mermaid.write_page(tmp_path / "pictures.html", pictures))) == ["bad"]
