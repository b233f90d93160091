"""Every error tfos_ml raises, on one page.

::

    TfosMlError
    ├── InvalidInputError            found on the driver, before any job starts
    │   ├── ParamError               a Param's type or range
    │   ├── InputTypeError           an argument is not a Spark DataFrame, or not a cluster
    │   ├── ColumnNotFoundError      a column the DataFrame does not have
    │   ├── ColumnTypeError          a column whose type no tensor can hold
    │   ├── TrainFnPickleError       a train function that cannot be sent to the nodes
    │   ├── ClusterConfigError       a Spark setting that would break the run
    │   ├── PackedEnvironmentError   an environment that cannot be packed, or an archive of another one
    │   ├── RemovedError             a function of TensorFlowOnSpark that tfos_ml does not have
    │   ├── NotEnoughSlotsError      more nodes than Spark has task slots
    │   ├── SnapshotError            a cacheDir that cannot be used, or has other rows
    │   └── DestinationError         a directory that cannot be written or is in use
    ├── DataError                    found in the data
    │   ├── EmptyDataError           no rows at all, or too few to give every worker a batch in every step
    │   ├── NullValueError           a null where none is allowed
    │   ├── NonFiniteValueError      NaN or infinity where none is allowed
    │   ├── LabelRangeError          labels that the model's loss cannot take
    │   ├── CorruptRecordError       a TFRecord that is damaged, or does not fit the columns
    │   └── ShapeError               rows that do not have the expected shape or dtype
    ├── ModelError                   a SavedModel that is missing or does not fit
    │   ├── NothingExportedError     the train function exported no model
    │   └── SignatureError           names, dtypes or row counts differ from the signature
    ├── MissingPackageError          pyspark, TensorFlow or MLflow is not installed
    ├── NoSummaryError               a model that was not made by fit has no summary
    ├── FitCancelledError            the Spark job was canceled, or the session stopped
    ├── SearchError                  no trial of a search has a result
    ├── ResultSizeError              the results exceed spark.driver.maxResultSize
    ├── ReservationTimeoutError      the nodes did not all start in time
    ├── ShutdownTimeoutError         the nodes of a TFCluster did not all end in time
    ├── ClusterClosedError           a TFCluster was used after its end
    └── NodeError                    one node failed: role, index, host, cause, log tail
        ├── TrainFnError             the train function raised; carries its traceback
        ├── NodeExitError            the TensorFlow process died: exit code or signal
        ├── NodeLostError            the node's Spark task, Python worker or host is gone
        │   └── PythonDaemonError    Spark's Python daemon had ended, so the node could not start
        ├── InputLostError           Spark could not read all of the node's rows, or nodes took others
        ├── FileReadError            a node could not read a file of its input
        ├── SupersededError          a later attempt writes to the same modelDir
        ├── FeedTimeoutError         a node waited too long for rows, or for space for rows
        ├── PreemptedError           a node was told to end; the state is in modelDir
        ├── NonFiniteTrainingError   the loss or weights became NaN or infinite
        ├── CollectiveCallError      ``ctx.dataset`` or ``ctx.barrier`` called out of step
        ├── ModelDirError            a node could not read or write modelDir
        ├── SpoolFullError           no space left for the rows or the model of a node
        ├── VersionMismatchError     nodes run different versions of Python or TensorFlow
        └── PortTakenError           the reserved port was taken before TensorFlow bound it

Warnings are

::

    TfosMlWarning
    ├── IndependentWorkersWarning    workers trained apart from each other, on parts of the rows
    ├── NodeEndedWarning             a node was ended while it still worked
    ├── NothingExportedWarning       fit returned a model that cannot transform
    └── UnnamedFieldsWarning         fields of rows without names go to tensors by position

The first failure that *happened* is the one raised; failures it caused in other
nodes (broken collectives) are not.
"""

from __future__ import annotations

from tfos_ml.excerpt import message_excerpt, output_excerpt, traceback_excerpt

try:
    from pyspark.errors import IllegalArgumentException
except ImportError:  # where a model is served there may be no Spark

    class IllegalArgumentException(Exception):  # type: ignore[no-redef]  # noqa: N818
        """Replaces Spark's class."""

        def __init__(self, message: str):
            self._message = message


class TfosMlError(Exception):
    """Base class of every error raised by tfos_ml."""


class InvalidInputError(TfosMlError, ValueError):
    """Bad input, found on the driver before any Spark job started."""


class ParamError(InvalidInputError):
    """A Param has a value of the wrong type or out of range."""


class InputTypeError(InvalidInputError, TypeError):
    """An argument is not a Spark DataFrame, or not a TensorFlow cluster, where one is needed."""


class ColumnNotFoundError(InvalidInputError, IllegalArgumentException):
    """A named column is not in the DataFrame."""

    def __init__(self, message: str):
        IllegalArgumentException.__init__(self, message)
        self._message = message  # as Spark 4 has it

    def __str__(self) -> str:
        return str(self._message)


class ColumnTypeError(InvalidInputError):
    """A column has a type that no tensor can hold."""


class TrainFnPickleError(InvalidInputError):
    """The train function, or something it captures, cannot be pickled."""


class ClusterConfigError(InvalidInputError):
    """A Spark setting would break the run."""


class PackedEnvironmentError(InvalidInputError):
    """An environment cannot be packed, or an archive of ``python -m tfos_ml pack`` does not fit driver or executors."""


class RemovedError(InvalidInputError, NotImplementedError):
    """A function of TensorFlowOnSpark that :mod:`tfos_ml.compat` does not have. The message names a replacement."""


class NotEnoughSlotsError(InvalidInputError):
    """The cluster has more nodes than Spark has task slots."""


class SnapshotError(InvalidInputError):
    """The snapshot in ``cacheDir`` is damaged or of other rows, or none can be written there."""


class DestinationError(InvalidInputError):
    """A directory to be written to is in use or cannot be written."""


class DataError(TfosMlError, ValueError):
    """The rows of a DataFrame are not valid."""


class EmptyDataError(DataError):
    """The DataFrame has no rows, or too few to give every worker a batch in every step."""


class NullValueError(DataError):
    """A column has a null, and ``handleInvalid`` allows none."""


class NonFiniteValueError(DataError):
    """A column has NaN or infinity, and ``handleInvalid`` allows none."""


class LabelRangeError(DataError):
    """Labels that the loss of the model cannot take: they are not class indices, or not probabilities."""


class CorruptRecordError(DataError):
    """A TFRecord is damaged or does not fit the columns.

    Attributes
    ----------
    file : str
        Path or URI of the file.
    offset : int
        Byte of the uncompressed file at which the record begins; -1 if unknown.
    """

    def __init__(self, message: str, file: str = "", offset: int = -1):
        super().__init__(message)
        self.file = file
        self.offset = offset


class ShapeError(DataError):
    """Rows do not have the shape or dtype that is expected."""


class ModelError(TfosMlError):
    """A SavedModel is missing, unreadable or does not fit its use."""


class NothingExportedError(ModelError):
    """The train function exported no model, or the model cannot be exported, so ``transform`` is not possible."""


class SignatureError(ModelError, ValueError):
    """Columns and a SavedModel's signature do not fit together."""


class MissingPackageError(TfosMlError, ImportError):
    """pyspark, TensorFlow, TensorFlow Text or MLflow is not installed. The message has the command that installs it."""


class NoSummaryError(TfosMlError, RuntimeError):
    """A model that was not made by ``fit`` was asked for its summary."""


class FitCancelledError(TfosMlError):
    """The Spark job of a fit was canceled from outside, or its session was stopped."""


class SearchError(TfosMlError):
    """No trial of a search has a result: all have failed, or were pruned.

    Attributes
    ----------
    failures : dict of int to Exception
        The errors of trials that this program has run, by their numbers.
    """

    def __init__(self, message: str, failures: dict[int, Exception] | None = None):
        super().__init__(message)
        self.failures = failures or {}


class ResultSizeError(TfosMlError):
    """The results of the nodes are larger than ``spark.driver.maxResultSize``."""


class ReservationTimeoutError(TfosMlError):
    """The nodes of the cluster did not all start within ``reservationTimeout``."""


class ShutdownTimeoutError(TfosMlError, TimeoutError):
    """The nodes of a ``TFCluster`` did not all end in time."""


class ClusterClosedError(TfosMlError):
    """A ``TFCluster`` was used after its end, or while its stream was being ended."""


class NodeError(TfosMlError):
    """One node of the cluster failed.

    Attributes
    ----------
    role : str
        ``"worker"``, ``"chief"``, ``"ps"``, ...; empty if not known.
    index : int
        Index of the node within its role; -1 if not known.
    host : str
        Host the node ran on; empty if not known.
    traceback : str
        Traceback of the node's Python code; empty if there is none.
    details : str
        The complete message, traceback and output; ``str()`` has the important part of it.
    log_tail : str
        The last lines the node's process wrote to stdout and stderr.
    exit_code : int or None
        Exit code of the process; None if it did not exit by itself.
    signal : str or None
        Name of the signal that ended the process, for instance ``"SIGKILL"``.
    is_collateral : bool
        Whether it looks like the consequence of another node's end.
    """

    def __init__(
        self,
        message: str,
        *,
        role: str = "",
        index: int = -1,
        host: str = "",
        traceback: str = "",
        log_tail: str = "",
        exit_code: int | None = None,
        signal: str | None = None,
        is_collateral: bool = False,
    ):
        super().__init__(message)
        self.message = message
        self.role = role
        self.index = index
        self.host = host
        self.traceback = traceback
        self.log_tail = log_tail
        self.exit_code = exit_code
        self.signal = signal
        self.is_collateral = is_collateral

    def __str__(self) -> str:
        """The important part, in a few lines; :attr:`details` has everything."""
        message = self._formatted(
            message_excerpt(self.message),
            traceback_excerpt(self.traceback, self.message),
            output_excerpt(self.log_tail),
        )
        left_out = len(self.details.splitlines()) - len(message.splitlines())
        return f"{message}\n\n(error.details has {left_out} lines more)" if left_out > 2 else message

    @property
    def details(self) -> str:
        """The complete message and traceback, and the known part of the node's output."""
        return self._formatted(self.message, self.traceback.rstrip(), self.log_tail.rstrip())

    def _formatted(self, message: str, traceback: str, output: str) -> str:
        where = f"{self.role}:{self.index} on {self.host}: " if self.role else ""
        last = "Last output of the node:\n" + output if output else ""
        return "\n\n".join(part for part in (where + message, traceback, last) if part)


class TrainFnError(NodeError):
    """The train function raised an exception on one node."""


class NodeExitError(NodeError):
    """The TensorFlow process of one node died, or exited before its train function had returned."""


class NodeLostError(NodeError):
    """The Spark task, Python worker or host of a node died, or is cut off."""


class PythonDaemonError(NodeLostError):
    """Spark's Python daemon on an executor had ended, so that a node, or another task, could not start."""


class InputLostError(NodeError):
    """Spark could not read all rows of a node, or nodes took others, so the training does not count."""


class FileReadError(NodeError):
    """A node could not read a file of its input."""


class SupersededError(NodeError):
    """A later attempt or fit has taken over the ``modelDir`` of this fit."""


class FeedTimeoutError(NodeError):
    """A node waited longer than ``feedTimeout`` for rows, or for space for rows."""


class CollectiveCallError(NodeError):
    """Nodes called ``ctx.dataset``, ``ctx.get_data_feed`` or ``ctx.barrier`` out of step."""


class PreemptedError(NodeError):
    """A node was told to end, by SIGTERM or because its executor leaves; the state of that step is in ``modelDir``."""


class NonFiniteTrainingError(NodeError):
    """The loss or weights of a Keras model became NaN or infinite; raised for the node where it began."""


class ModelDirError(NodeError):
    """A node could not read or write the checkpoints in ``modelDir``: it is full, or its store fails."""


class SpoolFullError(NodeError):
    """Neither shared memory nor the local disk has space for a node's rows, or the disk has none for its model."""


class VersionMismatchError(NodeError):
    """Nodes run different versions of Python or TensorFlow."""


class PortTakenError(NodeError):
    """Another process took the reserved port before TensorFlow could bind it."""


class TfosMlWarning(UserWarning):
    """Base class of the warnings of tfos_ml that programs may want to filter."""


class IndependentWorkersWarning(TfosMlWarning):
    """Several workers trained, each on its part of the rows, and did not work together."""


class NodeEndedWarning(TfosMlWarning):
    """A worker or evaluator was ended: it had not returned in time, or its process did not end after it had."""


class NothingExportedWarning(TfosMlWarning):
    """The train function exported no model, or KerasEstimator trains one that cannot be exported."""


class UnnamedFieldsWarning(TfosMlWarning):
    """Rows have no column names, so fields are assigned to tensors by position."""
