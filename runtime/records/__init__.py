"""What a run records in its folder: what lies where, its events, and files that appear whole."""
