"""The sessions of a worker: how one becomes ready, its steps, and how it is stopped or lost."""
