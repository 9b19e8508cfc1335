"""Merge the traces of a run that are in its train directory: python -m runtime.trace TRAIN_DIR."""

import sys

from runtime import environment  # noqa: F401  # first: it sets what TensorFlow reads when it is imported

# isort: split
from runtime import trace


def main() -> None:
    """Write the trace, also of a run that goes on or was killed, and print its path."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: python -m runtime.trace TRAIN_DIR")
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    try:
        path = trace.write(sys.argv[1])
    except (OSError, ValueError) as error:
        sys.exit(f"error: the trace could not be made: {error}")
    if not path:
        sys.exit(f"error: there is no trace in {sys.argv[1]}: --profile_steps makes the workers write one there")
    print(path)


if __name__ == "__main__":
    main()
