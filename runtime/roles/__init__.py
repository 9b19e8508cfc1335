"""The role of a process: its flags, its task, and how it trains or evaluates."""
