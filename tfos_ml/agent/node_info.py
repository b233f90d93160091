"""What a node tells the others about itself when they meet."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

from tfos_ml.common.version import __version__
from tfos_ml.errors import VersionMismatchError
from tfos_ml.protocol.addresses import bracketed
from tfos_ml.protocol.codec import Struct, decode_text


class NodeInfo(Struct, frozen=True):
    """A node's address, versions and process."""

    rank: int
    label: str
    host: str
    port: int
    versions: dict[str, str]
    pid: int
    feed: str | None = None  # where feed tasks connect, if the node is fed

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{bracketed(self.host)}:{self.port}"


def local_versions() -> dict[str, str]:
    """Versions of Python and of the packages that must be the same on all nodes; read without importing them."""
    path = [p for p in sys.path if not p.endswith(".zip")]  # Spark's archives, which take half a second to search
    distribution = next(iter(importlib.metadata.distributions(name="tensorflow", path=path)), None)
    tensorflow = "unknown" if distribution is None else distribution.version  # on the path, but not installed
    return {"python": platform.python_version(), "tensorflow": tensorflow, "tfos_ml": __version__}


def read_infos(messages: list[str]) -> list[NodeInfo]:
    """Decode the nodes' infos, by rank; raises ``VersionMismatchError``, which names the packages that differ."""
    infos = sorted((decode_text(NodeInfo, message) for message in messages), key=lambda info: info.rank)
    for package in infos[0].versions:
        by_node = {f"{c.label} on {c.host}": c.versions.get(package) for c in infos}
        if len(set(by_node.values())) > 1:
            raise VersionMismatchError(
                f"The nodes run different versions of {package}: {by_node}. Install the same one on every host."
            )
    return infos
