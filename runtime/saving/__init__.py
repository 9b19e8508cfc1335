"""What remains of a run: its checkpoints, its result, its exported model."""
