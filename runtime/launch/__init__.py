"""The launcher: it gets a machine ready for a cluster, starts the tasks, watches over them and ends them."""
