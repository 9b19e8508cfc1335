"""Other ways to train the same model: `python -m benchmarks.peers NAME [flags]` is one process of one of them."""
