"""This process: its environment, what it says, its threads, its errors, and its end."""
