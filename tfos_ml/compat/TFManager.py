"""What a map function gets as ``ctx.mgr``: the handle from which ``TFNode.DataFeed`` is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from tfos_ml.errors import RemovedError

if TYPE_CHECKING:
    from tfos_ml.worker.node_context import NodeContext


class TFManager:
    """The feed of one node, and a few values by name, which no other process sees.

    There is no manager process as in TensorFlowOnSpark: ``get`` returns a value, not a proxy of one.
    """

    def __init__(self, node: NodeContext):
        self._node = node
        self._values: dict[str, Any] = {"state": "running"}

    def get(self, key: str) -> Any:
        """A value; ``"state"`` is ``"running"``, or ``"terminating"`` after the feed was terminated."""
        return self._values[key]

    def set(self, key: str, value: Any) -> None:
        """Set a value."""
        self._values[key] = value

    def get_queue(self, qname: str) -> NoReturn:
        """Gone: there are no queues. Raises ``RemovedError``."""
        raise RemovedError(
            f"ctx.mgr.get_queue({qname!r}): there are no queues. Read rows with "
            f"TFNode.DataFeed(ctx.mgr, qname_in={qname!r}) or ctx.get_data_feed()."
        )

    def open_feed(self, train_mode: bool, qname_in: str) -> Any:
        """The rows of a queue, whose lists come as lists; for tfos_ml itself."""
        feed: Any = self._node.get_data_feed(train_mode, qname_in)
        feed.keeps_lists = True
        return feed
