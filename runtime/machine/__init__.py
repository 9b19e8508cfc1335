"""What a task takes of its machine: threads, devices, priority, and a port."""
