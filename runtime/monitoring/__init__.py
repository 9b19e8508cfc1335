"""What people see of a run in progress: progress lines, evaluations, summaries, traces."""
