"""Programs of the kinds that keras.io shows, each written anew, small, on made-up data; cases for keras_worker.py."""

from __future__ import annotations

from example_programs.keras_io import EXAMPLES

__all__ = ["EXAMPLES"]
