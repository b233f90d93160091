"""A place in a training."""

from __future__ import annotations

from tfos_ml.protocol.codec import Struct


class Position(Struct, frozen=True, order=True):
    """So many steps of an epoch are done."""

    epoch: int  # number of completed epochs
    step: int  # completed steps of the next one
    steps: int  # of an epoch

    @property
    def epochs(self) -> float:
        """Completed epochs, with the part of the next one."""
        return self.epoch + self.step / max(1, self.steps)

    def __str__(self) -> str:
        return f"epoch {self.epoch + 1}, step {self.step}"
