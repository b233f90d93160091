"""The arguments of a train function, in a module that a node imports fast."""

from __future__ import annotations

import argparse
from typing import Any


class TrainArgs(argparse.Namespace):
    """What a train function gets as ``args``: ``args.epochs`` and ``args["epochs"]`` alike."""

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name, or `default`."""
        return vars(self).get(name, default)
