"""Tries whether several workers train a model exactly as one does, before the first step."""
