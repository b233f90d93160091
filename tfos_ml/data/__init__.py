"""Columns, Arrow, NumPy, the order of rows, and the spool."""
