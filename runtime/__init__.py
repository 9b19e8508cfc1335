"""The machinery that makes `distributed.py` safe and fast, in rooms of a few files each."""

VERSION = "2.2.0"  # as in pyproject.toml; CHANGELOG.md says what it brings
