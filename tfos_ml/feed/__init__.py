"""Rows on their way from Spark to TensorFlow."""
