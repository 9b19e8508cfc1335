"""Who is in the cluster, and are they there?"""
