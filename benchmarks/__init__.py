"""What the program costs and how it compares: scripts that measure, and the documents' tables that they write."""
