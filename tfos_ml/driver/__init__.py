"""The driver's side of a run: starts, watches, cancels and closes it."""
