"""Chromium without a window: it opens a page from a file, and takes pictures of it."""

import pathlib
import shutil
import subprocess
import tempfile
from typing import NamedTuple

from PIL import Image

from benchmarks.testbed.processes import can_run

CHROMIUM = shutil.which("chromium") or "chromium"
IS_MISSING = not can_run([CHROMIUM, "--version"])


class Screen(NamedTuple):
    """What somebody looks at a page with; sizes in pixels."""

    width: int
    height: int
    is_dark: bool = False


SCREENS = {"light": Screen(1100, 2400), "dark": Screen(1100, 2400, is_dark=True), "phone": Screen(390, 2400)}


def browse(page, *options):
    """Open a page in a new profile that reaches no network; return the process, which has ended."""
    with tempfile.TemporaryDirectory() as profile:
        options = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND", *options]
        command = [CHROMIUM, "--headless", f"--user-data-dir={profile}", *options, pathlib.Path(page).as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)


def take_picture(page, screen, path):
    """Write what a screen shows of a page, as a PNG, and return it."""
    scheme = f"--blink-settings=preferredColorScheme={0 if screen.is_dark else 1}"
    size = f"--window-size={screen.width},{screen.height}"
    shown = browse(page, scheme, size, "--hide-scrollbars", f"--screenshot={path}")
    assert shown.returncode == 0, shown.stderr
    with Image.open(path) as file:
        picture = file.convert("RGB")
    picture.save(path, optimize=True)
    return picture
