"""The launcher, which prepares a machine, and starts, watches and ends the tasks."""
