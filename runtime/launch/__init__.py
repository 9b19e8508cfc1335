"""What the launcher needs: a Python with the packages, free ports, and TensorBoard."""
