"""How the results of the workers reach the parameters."""
