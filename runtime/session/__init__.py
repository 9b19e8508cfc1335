"""A worker's training, from its first session to its result."""
