"""Programs of the kinds that keras.io shows, each written anew, small, on made-up data; cases for keras_worker.py."""

from __future__ import annotations

from example_programs import generative, sequences, tables, vision

EXAMPLES = {
    **tables.PROGRAMS,
    **vision.PROGRAMS,
    **sequences.PROGRAMS,
    **generative.PROGRAMS,
}
