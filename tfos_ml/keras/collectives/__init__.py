"""Sums, maxima and broadcasts over workers; no Keras in it."""
