"""The machinery that makes `distributed.py` safe and fast."""
