"""The user's two files as a function of inputs and parameters, traced once and copied where needed."""
