"""What people see of a run while it goes on: progress, evaluations, summaries, traces."""
