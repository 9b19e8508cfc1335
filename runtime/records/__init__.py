"""What a run records in its folder: its events, and files that appear whole."""
