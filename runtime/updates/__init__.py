"""How what the workers compute reaches the parameters."""
