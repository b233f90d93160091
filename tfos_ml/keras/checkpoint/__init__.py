"""What is in ``modelDir``."""
