"""A disk that is full, where the system lets a test mount one."""

import pytest

from benchmarks.testbed.processes import can_run


def full_disk(folder, size="64k"):
    """Return a command to put before another, which then finds an empty disk of this size at `folder`."""
    mount = f'mount -t tmpfs -o size={size} tmpfs "$0" && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(folder)]


NEEDS_PRIVATE_MOUNTS = pytest.mark.skipif(not can_run([*full_disk("/tmp"), "true"]), reason="needs unshare and mount")
