"""What the launcher shows on a terminal while a run goes on: how far it is, and what each task does."""
