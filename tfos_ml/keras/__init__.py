"""Keras training: in the worker, and what the driver has to know of a model before."""
