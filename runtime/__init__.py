"""The machinery that makes `distributed.py` safe and fast, in rooms of a few files each."""
