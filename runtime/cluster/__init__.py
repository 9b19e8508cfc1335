"""Who is in the cluster, and whether they answer."""
