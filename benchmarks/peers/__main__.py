"""One process of a way to train: `python -m benchmarks.peers NAME [flags]`; `benchmarks/contenders.py` starts them."""

import importlib
import sys

from absl import app

if __name__ == "__main__":
    peer = importlib.import_module(f"benchmarks.peers.{sys.argv.pop(1)}")
    app.run(lambda _: peer.main())
