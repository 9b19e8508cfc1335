"""What a task uses on its machine: threads, devices, priority, and a port."""
