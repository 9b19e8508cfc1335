"""The life of a session: made, joined, stopped, lost."""
