"""How much memory the rows of a node may use, and how it is divided.

A node keeps rows in shared memory and in the memory of its TensorFlow process. The process reads rows from disk into
*windows*: the current one, and the next one. All of that together stays within the budget. In addition, a node needs
some 50 bytes per row for the order of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfos_ml.data.spool import free_memory

SHARE = 0.5  # default part of the free memory for all nodes of a run on a host; the rest is for training
COPY = 1.5  # memory for a copy in TensorFlow, relative to the rows: the copy, and half of it for a conversion
LARGEST_WINDOW = 64 << 20  # holds one of a block shuffle
WINDOWS = 2  # the one that is being read, and the next


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes that the rows of one node may use."""

    size: int
    nodes: int = 1  # of the run that hold rows on this host

    @classmethod
    def of_node(cls, setting: int | None, nodes: int = 1) -> MemoryBudget:
        """The value of the setting, or a node's share of the memory that host and container have free now."""
        return cls(max(0, int(free_memory() * SHARE)) if setting is None else setting, nodes)

    def among(self, nodes: int, setting: int | None) -> MemoryBudget:
        """The budget of each of `nodes` nodes on this host, which share the free memory."""
        return MemoryBudget(self.size // nodes if setting is None else self.size, nodes)

    @property
    def window(self) -> int:
        """Bytes of rows to read from disk at a time."""
        return min(LARGEST_WINDOW, self.size // (WINDOWS + 1))

    @property
    def shared(self) -> int:
        """Bytes that may be held in shared memory."""
        return self.size - WINDOWS * self.window

    def has_room_for_copy(self, size: int) -> bool:
        """Whether rows of this size in shared memory may be copied into TensorFlow's memory."""
        copy = int(COPY * size)
        return size + copy <= self.size and free_memory() > self.nodes * copy
