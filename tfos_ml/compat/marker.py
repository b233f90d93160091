"""Markers in a stream of rows; nothing in tfos_ml needs them, programs may test for them."""

from __future__ import annotations


class Marker:
    """Base class of markers."""


class EndPartition(Marker):
    """The end of a partition.

    Differences: a feed of tfos_ml never holds one. ``DataFeed`` has filtered them for programs there, too.
    """
