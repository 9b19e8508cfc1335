"""The sessions of a worker: how one starts, takes steps, and is stopped or lost."""
