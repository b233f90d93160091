"""``InputMode``: who reads the data."""

from __future__ import annotations


class InputMode:
    """Who reads the data.

    Attributes
    ----------
    SPARK : str
        Spark feeds the rows of the DataFrame to the nodes.
    TENSORFLOW : str
        The nodes read the DataFrame's files themselves, each its share (``ctx.files()``).
    """

    __module__ = "tfos_ml"

    TENSORFLOW = "TENSORFLOW"
    SPARK = "SPARK"
