"""Mermaid, with which GitHub draws pictures: fetched once, as the npm package that it is, and run by chromium."""

import base64
import hashlib
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

from benchmarks.testbed.processes import can_run
from tests import browser

VERSION = "11.12.0"
INTEGRITY = (
    "sha512-ZudVx73BwrMJfCFmSSJT84y6u5brEoV8DOItdHomNLz32uBjNrelm7mg95X7g+C6UoQH/W6mBLGDEDv73JdxBg=="  # of the package
)
LIBRARY = pathlib.Path(sys.prefix) / f"mermaid-{VERSION}.min.js"
NPM = shutil.which("npm") or "npm"
IS_MISSING = browser.IS_MISSING or not (LIBRARY.exists() or can_run([NPM, "--version"]))

PAGE = """<!doctype html>
<meta charset="utf-8">
<title>not drawn</title>
<body style="background: BACKGROUND">
<script src="LIBRARY"></script>
<script>
  mermaid.initialize({startOnLoad: false, theme: "THEME"});
  (async () => {
    const errors = {};
    for (const [name, text] of Object.entries(PICTURES)) {
      try {
        const {svg} = await mermaid.render(`picture${document.body.children.length}`, text);
        document.body.insertAdjacentHTML("beforeend", `<div>${svg}</div>`);
      } catch (error) {
        errors[name] = error.message;
      }
    }
    document.title = JSON.stringify(errors);
  })();
</script>
"""


def fetch_library():
    """Return the path of the one file that a browser needs, as `npm pack` brings it."""
    if not LIBRARY.exists():
        with tempfile.TemporaryDirectory(dir=LIBRARY.parent) as folder:
            command = [NPM, "pack", f"mermaid@{VERSION}", f"--pack-destination={folder}"]
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
            (package,) = pathlib.Path(folder).glob("*.tgz")
            digest = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
            assert f"sha512-{digest}" == INTEGRITY, f"{package.name} is not the one that these tests were written for"
            with tarfile.open(package) as archive:
                script = archive.extractfile("package/dist/mermaid.min.js").read()
            unfinished = pathlib.Path(folder) / LIBRARY.name
            unfinished.write_bytes(script)
            os.replace(unfinished, LIBRARY)
    return LIBRARY


def write_page(path, pictures, is_dark=False):
    """Write a page that draws pictures, the texts of which are given by name, and return its path."""
    values = {
        "BACKGROUND": "#0d1117" if is_dark else "#ffffff",  # GitHub's
        "THEME": "dark" if is_dark else "default",
        "LIBRARY": fetch_library().as_uri(),
        "PICTURES": json.dumps(pictures).replace("</", "<\\/"),
    }
    path.write_text(re.sub("|".join(values), lambda match: values[match[0]], PAGE))
    return path


def find_errors(page):
    """Return what Mermaid says of the pictures of a page that it cannot draw, by name."""
    shown = browser.browse(page, "--virtual-time-budget=60000", "--dump-dom")
    return json.loads(html.unescape(re.search(r"<title>(.*?)</title>", shown.stdout, re.DOTALL)[1]))
