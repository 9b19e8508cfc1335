"""What a process is told to be: its flags, its task, and how it trains or evaluates, from its start to its end."""
