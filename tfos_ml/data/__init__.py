"""Conversion of columns to Arrow and NumPy, the order of rows, and the spool."""
