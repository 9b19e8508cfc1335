"""This process: its environment, messages, threads, errors, and end."""
