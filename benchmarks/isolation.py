"""A private network for what a benchmark starts: TensorFlow's servers listen on every interface of their machine."""

import os
import subprocess
import sys

PRIVATE_NETWORK = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"']


def isolate() -> None:
    """Start this program again in a network of its own, with `--no_isolation`, where the system allows it."""
    if not subprocess.run([*PRIVATE_NETWORK, "true"], capture_output=True).returncode:
        os.execvp(PRIVATE_NETWORK[0], [*PRIVATE_NETWORK, sys.executable, *sys.argv, "--no_isolation"])
