"""The launcher's terminal display of a run: its progress, and what each task does."""
