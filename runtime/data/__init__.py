"""Where examples come from, who reads which of them, and in which order."""
