"""The contenders of `compare.py`: each is a module, run from the root of the checkout with `python -m`."""
