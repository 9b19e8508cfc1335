"""Make the report of a run, from its train directory: python -m runtime.report TRAIN_DIR."""

import sys

from runtime import report


def main() -> None:
    """Write the report, also of a run that goes on or was killed, and print its path."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: python -m runtime.report TRAIN_DIR")
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    path = report.write(sys.argv[1])
    if not path:
        sys.exit(1)
    print(path)


if __name__ == "__main__":
    main()
