"""A user's model in other processes."""
