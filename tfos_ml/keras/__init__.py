"""Keras training: the workers' part, and the driver's inspection of a model before it."""
