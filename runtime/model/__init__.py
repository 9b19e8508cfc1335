"""What a user's two files compute, taken for a function of inputs and parameters: traced once, copied where needed."""
