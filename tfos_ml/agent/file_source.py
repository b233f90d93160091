"""The source of rows that nodes read from files: each node reads its share for all, or all files for itself.

Nodes that reach each other read together (``agent/row_exchange.py``). Where one of them is not reached by all others,
all agree to read alone. Who gets validation rows only, an evaluator, reads alone in any case: it ends after the others.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from tfos_ml import errors
from tfos_ml.agent.feeder import Feeder
from tfos_ml.agent.file_rows import RowDealer, read_share, reader_of
from tfos_ml.agent.rendezvous import NodeInfo
from tfos_ml.agent.row_exchange import Inbox, Peer, RemotePeer, is_reached
from tfos_ml.agent.row_outbox import Outbox
from tfos_ml.agent.row_source import Send
from tfos_ml.agent.task_input import as_they_come
from tfos_ml.data.file_plan import FileUnit, dealt_units
from tfos_ml.data.spool import SpoolDirectories
from tfos_ml.protocol.addresses import node_endpoint
from tfos_ml.protocol.node_task import NodeTask
from tfos_ml.protocol.transport import TransportServer

logger = logging.getLogger(__name__)
STOP_SECONDS = 5.0
_THREADS = 16


class FileSource(Feeder):
    """Rows of files for a node of some rank, on a host where others reach it; see :class:`RowSource`."""

    def __init__(self, task: NodeTask, rank: int, host: str, directories: SpoolDirectories, send: Send):
        super().__init__(task, directories, send)
        assert task.file_plan is not None
        self._task, self._plan = task, task.file_plan
        self._rank, self._host = rank, host
        self._directories = directories
        self._readers = task.template.feed_ranks
        self._may_share = rank in self._readers and len(self._readers) > 1 and task.control is not None
        self._server: TransportServer | None = None
        self._outbox = Outbox(directories, self._readers)
        self._inbox: Inbox | None = None
        self._reader: threading.Thread | None = None
        self._peers: list[Peer] = []
        self._hosts: dict[int, str] = {}  # of readers, by rank
        self._problem: BaseException | None = None
        self._read_rows = 0
        self._alone_because = ""

    def start(self) -> None:
        """See :class:`RowSource`; opens the server for other nodes, if it can."""
        if not self._may_share:
            return
        assert self._task.control is not None
        endpoint = node_endpoint(self._host, self._task.node_ports)
        try:
            self._server = TransportServer(endpoint, self._task.control["token"], self._outbox.service())
        except errors.ClusterConfigError as error:
            logger.warning("Other nodes cannot have rows of this one: %s", error)
        else:
            self.location = self._server.location

    def connect(self, infos: Sequence[NodeInfo]) -> str:
        """See :class:`RowSource`."""
        if not self._may_share:
            return ""
        assert self._task.control is not None
        readers = [infos[rank] for rank in self._readers]
        self._hosts = {info.rank: info.host for info in readers}
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="peers") as pool:
            reached = list(pool.map(is_reached, [info.feed for info in readers]))
        unreached = [info.label for info, is_one in zip(readers, reached, strict=True) if not is_one]
        if unreached:
            return f"{infos[self._rank].label} on {self._host} does not reach {unreached[0]}"
        token = self._task.control["token"]
        for info in readers:
            if info.rank == self._rank:
                self._peers.append(Peer(info.rank, info.label, self._outbox.take))
            else:
                self._peers.append(RemotePeer(info.rank, info.label, str(info.feed), token))
        return ""

    def begin(self, problems: Sequence[str]) -> None:
        """See :class:`RowSource`; without problems the nodes read together."""
        self._alone_because = next(filter(None, problems), "")
        if self._alone_because:
            logger.warning("Each node reads all files, since %s", self._alone_because)
            for peer in self._peers:
                peer.close()
        elif self._may_share:
            units = self._plan.units(len(self._readers))
            work = list(zip(units, dealt_units(units, self._readers, self._hosts), strict=True))
            mine = [unit for unit, rank in work if rank == self._rank]
            self._inbox = Inbox(self._rank, self._directories, work, self._peers, self._task.settings.feed_timeout)
            self._reader = threading.Thread(target=self._read, args=(mine,), name="file reader", daemon=True)
            self._reader.start()

    def _read(self, units: Sequence[FileUnit]) -> None:
        try:
            self._read_units(units)
        except BaseException as error:  # raised by :meth:`check`
            self._problem = error

    def _read_units(self, units: Sequence[FileUnit]) -> None:
        """Read units for all nodes, until nobody wants more."""
        dealer = RowDealer(self._plan, self._task.schema, self._task.template)
        with contextlib.closing(reader_of(self._plan)) as reader:
            for unit in units:
                self._outbox.begin(unit.number)
                for ids, batch in reader.read(unit):
                    if not self._outbox.wait_for_room():
                        return
                    self._read_rows += len(ids)
                    for rank, rows in dealer.rows_by_node(ids, batch):
                        self._outbox.write(rank, rows)
                self._outbox.end()

    def feed(self, batches: Iterable[Any]) -> Iterator[float]:
        """See :class:`RowSource`; there are no `batches`."""
        if self._inbox is not None:
            yield from super().feed(as_they_come(self._inbox.chunks()))
        else:
            yield from super().feed(as_they_come(self._own_rows()))

    def _own_rows(self) -> Iterator[pa.RecordBatch]:
        for batch in read_share(self._plan, self._task.schema, self._task.template, self._rank):
            self._read_rows += batch.num_rows
            yield batch

    def write(self, batch: Any) -> None:
        """Add the rows of a batch, or of a chunk with the name of its stream."""
        if isinstance(batch, tuple):
            self.take_over(*batch)
        else:
            super().write(batch)

    def check(self) -> None:
        """See :class:`RowSource`: also when this node has all its rows, others may need what it reads."""
        if self._problem is not None:
            raise self._problem

    def finish(self) -> None:
        """See :class:`RowSource`."""
        super().finish()
        self.close()

    def close(self) -> None:
        """See :class:`RowSource`."""
        if self._inbox is not None:
            self._inbox.close()

    def facts(self) -> dict[str, Any]:
        """See :class:`RowSource`."""
        return {"read_rows": self._read_rows, "reads_alone_because": self._alone_because}

    def stop(self) -> None:
        """See :class:`RowSource`."""
        self.close()
        self._outbox.close()
        if self._inbox is not None:
            self._inbox.join()
        if self._reader is not None:
            self._reader.join(STOP_SECONDS)
        if self._server is not None:
            self._server.close()
