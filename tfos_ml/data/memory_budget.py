"""How much memory the rows of a node may take, and how it is divided.

A node holds rows in shared memory, as they came, and in the memory of its TensorFlow process, where rows that lie on
disk are read into *windows*: one that is being trained, and the next one. Both together stay within the budget. Beside
it a node needs some 50 bytes for each of its rows, for their order.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfos_ml.data.spool import MEMORY_RESERVE, free_memory

SPOOL_SETTING = "spark.tfos_ml.spoolMemory"
SHARE = 0.5  # of the free memory, by default, for all nodes of a run on a host together: the rest is for training
COPY = 1.5  # of the rows' size, for a copy in TensorFlow's memory: whole, and once more half as wide if it is converted
LARGEST_WINDOW = 64 << 20  # holds one of a block shuffle
WINDOWS = 2  # the one that is being read, and the next


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes that the rows of one node may take."""

    size: int
    nodes: int = 1  # of the run that hold rows on this host

    @classmethod
    def of_node(cls, setting: int | None, nodes: int = 1) -> MemoryBudget:
        """What the setting says, or a node's share of what host and container leave free now."""
        return cls(max(0, int((free_memory() - MEMORY_RESERVE) * SHARE)) if setting is None else setting, nodes)

    def among(self, nodes: int, setting: int | None) -> MemoryBudget:
        """That of each of so many nodes on this host, which have found the same memory free."""
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
        """Whether rows of that size, which are in shared memory, may be copied into TensorFlow's."""
        copy = int(COPY * size)
        return size + copy <= self.size and free_memory() > self.nodes * copy + MEMORY_RESERVE
