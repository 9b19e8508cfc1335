"""What the launcher needs: a Python with the packages, and free ports."""
