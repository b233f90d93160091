"""``NodeContext``: gives the user's train function its node's role and rows."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfos_ml import errors
from tfos_ml.data.row_order import batch_sizes
from tfos_ml.protocol import messages
from tfos_ml.protocol.channel import Channel
from tfos_ml.worker.data_feed import DataFeed
from tfos_ml.worker.dataset import make_dataset
from tfos_ml.worker.inbox import Inbox
from tfos_ml.worker.node_internals import NodeInternals

if TYPE_CHECKING:
    import tensorflow as tf

    from tfos_ml.worker.cluster_resolver import SparkClusterResolver


class NodeContext:
    """One node of the cluster, as its train function sees it.

    tfos_ml creates it and passes it to ``trainFn(args, ctx)``. Files that the train function creates with
    ``tempfile`` are deleted when its process has ended.

    Attributes
    ----------
    job_name : str
        ``"worker"``, ``"chief"``, ``"master"``, ``"ps"`` or ``"evaluator"``.
    task_index : int
        Index of the node within its job.
    executor_id : int
        Rank of the node in the whole cluster.
    worker_num, num_workers : int
        Index and number of the nodes that receive training rows; ``worker_num`` is -1 on other nodes. With
        ``TFParallel``, index and number of the instances.
    cluster_spec : dict of str to list of str
        ``host:port`` of all nodes by job name.
    is_chief : bool
        Whether this node is the chief, which exports the model.
    default_fs, working_dir : str
        Default filesystem of the Spark cluster, and the driver's working directory.
    checkpoint_dir : str or None
        Absolute form of ``modelDir``.
    log_dir : str
        Directory for TensorBoard's event files: ``logDir``. If that is not set, a directory that is deleted with the
        node, or kept with ``tensorboard=True``. If TensorFlow cannot write to the store of ``logDir`` (it can write
        to local paths and ``gs://``), a local directory that is copied there at the end, and by ``KerasEstimator``
        after each epoch.
    restart_count : int
        Number of restarts of this fit so far.
    run_id : str
        Identifies one attempt of a fit; the same on all its nodes.
    batch_size, per_node_batch_size, epochs : int
        The global batch, one node's share of it (at least 1), and the epochs requested.

    Examples
    --------
    >>> def train_fn(args, ctx):                                    # doctest: +SKIP
    ...     for features, label in ctx.dataset(epochs=ctx.epochs):
    ...         ...
    ...     ctx.export_saved_model(model)
    """

    __module__ = "tfos_ml"

    def __init__(self, start: messages.Start, channel: Channel, inbox: Inbox):
        self._node = NodeInternals(start, channel, inbox)
        settings = start.settings
        self.job_name = start.job_name
        self.task_index = start.task_index
        self.executor_id = start.rank
        self.cluster_spec = start.cluster_spec
        self.is_chief = start.is_chief
        self.default_fs = settings.default_fs
        self.working_dir = settings.working_dir
        self.restart_count = settings.restart_count
        self.batch_size = settings.batch_size
        self.epochs = settings.epochs
        self._label = start.label
        self._feed_labels = start.feed_labels
        self.num_workers = len(self._feed_labels)
        self.worker_num = self._feed_labels.index(self._label) if self._label in self._feed_labels else -1
        self.per_node_batch_size = max(1, self.batch_size // self.num_workers)
        if settings.instances is not None:  # of TFParallel, which share nothing but their numbers
            self.worker_num, self.num_workers = self.executor_id, settings.instances
        self.checkpoint_dir = self.absolute_path(settings.model_dir) if settings.model_dir else None
        self.log_dir = start.log_dir
        self.run_id = start.run_id
        self._directory = start.directory
        self._channel = channel
        self._inbox = inbox

    # Rows

    @property
    def row_count(self) -> int:
        """Number of training rows of all nodes; waits until all rows have arrived."""
        return sum(self._node.rows.counts("train").values())

    @property
    def validation_row_count(self) -> int:
        """Number of validation rows of all nodes; waits until all rows have arrived."""
        return sum(self._node.rows.counts("validation").values())

    def dataset(
        self,
        batch_size: int | None = None,
        epochs: int | None = None,
        shuffle: bool | None = None,
        drop_remainder: bool = False,
    ) -> tf.data.Dataset:
        """This node's training rows as batches.

        Under a strategy of ``tf.distribute``, too, a batch is this node's share of a step: pass the dataset to ``fit``
        of tf_keras, to ``experimental_distribute_dataset`` or, in a function, to ``distribute_datasets_from_function``.

        The datasets of all workers have the same number of batches, which TensorFlow knows, and no batch is empty: a
        worker that would have no row in the last step keeps one from the step before. In one epoch every row of the
        DataFrame is used exactly once, on one worker.

        Parameters
        ----------
        batch_size : int, optional
            Rows of this node in one step; default ``per_node_batch_size``.
        epochs : int, optional
            Epochs in one iteration over the dataset; default 1.
        shuffle : bool, optional
            Default the Param ``shuffle``. The order is one seeded permutation of all rows, a new
            one each pass and the same for every cluster size. If the rows of all nodes are larger
            than ``spark.tfos_ml.shuffleMemory`` (16g), blocks of 2 MiB are permuted, and then the
            rows within windows of 24 blocks, and a warning says so. Without `shuffle`, rows come in
            the order of the DataFrame.
        drop_remainder : bool, default False
            Whether all workers drop the rows that do not fill a batch on all of them.

        Returns
        -------
        tf.data.Dataset
            Of ``(features, label)``, with ``weightCol`` ``(features, label, weight)``, without a
            label ``features`` alone. Each is a tensor of shape ``(batch,)`` for a scalar column
            and one dimension more for each level of array, or with ``inputMapping`` or
            ``labelMapping`` a dict of such tensors by name. If the rows of an array column have
            different lengths, that dimension is None, and rows are padded with ``padValue`` to the
            longest of their batch: use a mask, or the result of a row depends on its neighbors.

        Raises
        ------
        ShapeError
            If vectors of one column have different sizes.
        EmptyDataError
            If there is no row at all, or some worker would have no row in some step, for instance
            when there are fewer rows than workers.
        CollectiveCallError
            If this or another worker reads with :meth:`get_data_feed`.
        SpoolFullError
            If a shuffle of rows on disk needs more space than there is.

        Notes
        -----
        Last batches may differ in size from worker to worker. A ``tf.function`` with collective
        operations must not be traced again for each size, or the workers' collectives no longer
        match: give it ``input_signature=dataset.element_spec``.

        Autotuning is off (``options.autotune.enabled`` is False), because iterators of tuned datasets may take as long
        as a whole pass to end. If you add transformations that should be tuned, switch it on with ``with_options``.
        """
        batch_size = self.per_node_batch_size if batch_size is None else _positive("batch_size", batch_size)
        epochs = 1 if epochs is None else _positive("epochs", epochs)
        shuffle = self._node.settings.shuffle if shuffle is None else shuffle
        steps = self._node.rows.agreed_steps(batch_size, drop_remainder)
        self._node.reads = "dataset"
        store = self._node.rows.store("train")
        sizes = batch_sizes(len(store), batch_size, steps, drop_remainder)
        if shuffle:
            store.check_room()
        notice = self._node.rows.shuffle_notice() if shuffle else ""
        if notice:
            warnings.warn(notice, stacklevel=2)
        return make_dataset(
            store, sizes, epochs, self._node.settings.seed if shuffle else None, self._node.settings.pad_value
        )

    def validation_dataset(self, batch_size: int | None = None) -> tf.data.Dataset:
        """This node's validation rows, in order, as batches like those of :meth:`dataset`.

        If there is an evaluator, it gets all of them. Otherwise each worker gets a share, and the workers may have
        different numbers of batches, or none. TensorFlow is then not told how many, so that an evaluation under
        ``MultiWorkerMirroredStrategy`` ends on all workers together.
        """
        batch_size = self.per_node_batch_size if batch_size is None else _positive("batch_size", batch_size)
        store = self._node.rows.store("validation")
        steps = -(-len(store) // batch_size)
        sizes = batch_sizes(len(store), batch_size, steps, drop_remainder=False)
        tells_length = self._node.rows.have_same_steps("validation", batch_size)
        return make_dataset(store, sizes, 1, None, self._node.settings.pad_value, tells_length)

    def steps_per_epoch(self, batch_size: int | None = None) -> int:
        """Number of batches in one epoch of :meth:`dataset`, which is the same on every worker."""
        return self._node.rows.agreed_steps(batch_size or self.per_node_batch_size, drop_remainder=False)

    def get_data_feed(
        self, train_mode: bool = True, qname_in: str = "input", input_mapping: Mapping[str, str] | None = None
    ) -> DataFeed:
        """This node's training rows as they arrive, ``epochs`` times.

        With one epoch the node holds at most 256 MiB and one chunk of 32 MiB, in memory or on disk. With more epochs
        it keeps its rows. Workers can get different numbers of rows, in any order.

        Parameters
        ----------
        train_mode : bool, default True
            Whether this is training. If not, each row is read once, and :meth:`DataFeed.batch_results` has to be
            called with a result for every row.
        qname_in : str, default "input"
            With ``TFCluster``, the queue to read.
        input_mapping : dict of str to str, optional
            With ``TFCluster``, tensor names by column: batches are then dicts of arrays. For rows
            without column names, the mapping's order is taken for the order of the fields, with a
            warning (TensorFlowOnSpark takes the order of the columns' names). Estimators have the
            Param ``inputMapping`` instead.

        Warns
        -----
        UnnamedFieldsWarning
            When rows are read, if ``input_mapping`` has to go by position.
        """
        if self._node.rows.are_held:
            raise errors.CollectiveCallError("ctx.get_data_feed() after ctx.dataset(): the rows are held for datasets")
        if qname_in not in self._node.feeds:
            self._node.rows.streamed = True
            self._node.reads = "get_data_feed" if train_mode else self._node.reads
            make = self._fit_feed if self._node.settings.queues is None else self._cluster_feed
            self._node.feeds[qname_in] = make(train_mode, qname_in, input_mapping)
        return self._node.feeds[qname_in]

    def _fit_feed(self, train_mode: bool, stream: str, mapping: Mapping[str, str] | None) -> DataFeed:
        if mapping is not None or stream != "input":
            raise errors.ParamError("qname_in and input_mapping are for TFCluster; estimators have inputMapping")
        epochs = self.epochs if train_mode else 1
        self._channel.send(messages.Reading("get_data_feed", keeps_rows=epochs > 1))
        pad_value = self._node.settings.pad_value
        return DataFeed(self._inbox, self._channel, self._node.schema, epochs, train_mode, self._directory, pad_value)

    def _cluster_feed(self, train_mode: bool, stream: str, mapping: Mapping[str, str] | None) -> DataFeed:
        from tfos_ml.worker.cluster_feed import ClusterFeed

        queues = self._node.settings.queues or []
        if stream not in queues:
            raise errors.ParamError(
                f"qname_in must be one of the queues of TFCluster.run(), {queues}. Received: {stream!r}"
                + ("" if queues else ". With InputMode.TENSORFLOW nothing is fed")
            )
        self._channel.send(messages.Reading("get_data_feed", keeps_rows=False))
        pad_value = self._node.settings.pad_value
        return ClusterFeed(self._inbox, self._channel, stream, mapping, train_mode, self._directory, pad_value)

    def files(self) -> list[str]:
        """With ``InputMode.TENSORFLOW``, this worker's share of the DataFrame's files."""
        if self.worker_num < 0:
            return []
        self._node.reads = "files"
        return self._node.settings.files[self.worker_num :: self.num_workers]

    # The cluster

    def cluster_resolver(self) -> SparkClusterResolver:
        """A ``tf.distribute`` cluster resolver of this cluster."""
        from tfos_ml.worker.cluster_resolver import SparkClusterResolver

        return SparkClusterResolver(self._training_spec(), self.job_name, self.task_index)

    def communication_options(self) -> tf.distribute.experimental.CommunicationOptions:
        """The Param ``communication`` as an argument for ``MultiWorkerMirroredStrategy``."""
        import tensorflow as tf

        implementation = self._node.settings.communication.upper()
        return tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation[implementation]
        )

    def tf_cluster_spec(self) -> tf.train.ClusterSpec:
        """The cluster as ``tf.train.ClusterSpec``, without the evaluator."""
        import tensorflow as tf

        return tf.train.ClusterSpec(self._training_spec())

    def _training_spec(self) -> dict[str, list[str]]:
        return {job: tasks for job, tasks in self.cluster_spec.items() if job != "evaluator"}

    def start_server(self) -> tf.distribute.Server:
        """Start this node's TensorFlow gRPC server, for parameter servers and their workers.

        Raises
        ------
        tf.errors.UnknownError
            If another process has taken the port meanwhile; the fit is then repeated.
        """
        import tensorflow as tf

        return tf.distribute.Server(self.tf_cluster_spec(), job_name=self.job_name, task_index=self.task_index)

    def wait(self) -> None:
        """Wait until the nodes that train have ended; for parameter servers, and for workers that serve a chief."""
        self._inbox.wait_cluster_done()

    def should_stop(self) -> bool:
        """Whether the nodes that train have ended. An evaluator then evaluates once more and returns.

        On a worker beside a chief and parameter servers: whether the chief has ended. An evaluator that does not
        return is stopped after ``spark.tfos_ml.evaluatorGrace`` (60 s).
        """
        return self._inbox.cluster_done

    def is_preempted(self) -> bool:
        """Whether this node should end soon, because its executor, or that of another node of the fit, leaves.

        Spark tells of it if ``spark.decommission.enabled`` is set. Save a checkpoint then, and raise
        ``tfos_ml.errors.PreemptedError``: ``fit`` goes on elsewhere. Always False where it would not, without
        ``minClusterSize`` and ``maxRestarts``.
        """
        return self._inbox.preempted and self._node.settings.ends_when_preempted

    def barrier(self, name: str) -> None:
        """Wait until the chief and all workers have called ``barrier`` with the same name.

        Raises
        ------
        CollectiveCallError
            If one has ended or is at another barrier, or this node does not train.
        """
        if self._label not in self._feed_labels:
            raise errors.CollectiveCallError(f"ctx.barrier() is for {self._feed_labels}, not for {self._label}")
        if not (self._node.rows.streamed or self._node.rows.are_held):
            self._node.rows.keep()  # row counts are agreed on before the first barrier
        self._channel.send(messages.BarrierReached(name))
        error = self._inbox.barrier()
        if error:
            raise errors.CollectiveCallError(error)

    def release_port(self) -> None:
        """Free the reserved port for TensorFlow to bind. Estimators call it before the train function."""
        self._channel.send(messages.ReleasePort())
        self._inbox.port_released()

    # Results

    def report(self, metrics: dict[str, Any], epoch: int | None = None, step: int | None = None) -> None:
        """Report metrics: shown on the driver at once, kept in ``TFModel.summary.history``.

        Parameters
        ----------
        metrics : dict of str to number
            Scalars; tensors are converted.
        epoch, step : int, optional
            Epoch and step of the metrics, counted from 0.
        """
        values = {str(name): float(value) for name, value in metrics.items()}
        epoch, step = (None if n is None else int(n) for n in (epoch, step))
        self._channel.send(messages.Report(values, epoch, step, time.time(), self._label))

    def log(self, message: Any) -> None:
        """Show a line on the driver and write it to the log of this node, with the role and index of the node.

        Printed output, in contrast, stays in the logs of the executors unless ``verbose=2``. The driver shows a
        limited number of lines per second and counts the rest. With ``verbose=0`` it shows none.

        Parameters
        ----------
        message : object
            The line or lines, converted by ``str``.

        Examples
        --------
        >>> def train_fn(args, ctx):                                    # doctest: +SKIP
        ...     ctx.log(f"{ctx.row_count:,} rows")
        """
        self._channel.send(messages.LogLine(str(message)))

    def summarize(self, facts: dict[str, Any]) -> None:
        """Facts about this node's part in the run, for ``TFModel.summary``; JSON-serializable."""
        self._channel.send(messages.Summary(facts))

    def export_saved_model(self, model: Any, signatures: Any = None) -> str | None:
        """Export the model that ``fit`` returns. Call it on every node; the model of the chief is kept.

        Parameters
        ----------
        model : keras.Model or tf.Module
            The model. A Keras model is built from the feature columns if needed, and gets a signature: its inputs
            have the names of ``inputMapping`` (``features`` for a single input), its outputs those of the dict keys,
            or of the layers, or ``output_0``. The optimizer of a Keras 3 model is not exported, as in
            ``keras.Model.export``.
        signatures : optional
            Signatures as for ``tf.saved_model.save``, which replace the default one.

        Returns
        -------
        str or None
            On the chief the SavedModel's directory, which lives as long as the node; else None.

        Notes
        -----
        Other nodes save only models with variables of a ``tf.distribute`` strategy, for which
        TensorFlow needs all workers, and delete the copy.
        """
        return self._node.export(model, signatures)

    def absolute_path(self, path: str) -> str:
        """The absolute form of a path, the same on all nodes. Relative paths are on the default filesystem.

        They are relative to the user's home directory, on the local filesystem to the driver's working directory, and
        on an object store to the bucket. URIs do not change.
        """
        return self._node.settings.absolute_path(path)


def _positive(name: str, value: Sequence[int] | int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise errors.ParamError(f"{name} must be a positive integer. Received: {value!r}")
    return value
