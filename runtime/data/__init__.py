"""Where the examples come from."""
