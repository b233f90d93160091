"""Markers in a stream of rows, for programs that test for them."""

from __future__ import annotations


class Marker:
    """Base class of markers."""


class EndPartition(Marker):
    """The end of a partition; a feed of tfos_ml never holds one."""
