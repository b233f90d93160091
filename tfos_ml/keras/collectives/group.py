"""Collective operations among the workers that train a Keras model together.

On CPUs they go over connections between all workers (:mod:`tfos_ml.keras.collectives.sockets`). With GPUs, or on
request, they are ``CollectiveReduceV2`` and ``CollectiveGatherV2`` of TensorFlow's own collective runtime, which
``MultiWorkerMirroredStrategy`` starts from ``TF_CONFIG``. Nothing else of the strategy is used:
models and optimizers live outside its scope, since Keras 3 does not train under it
(https://github.com/keras-team/keras/issues/20585).

Every worker must begin the same operations in the same order. Methods and functions that do so have names that begin
with ``all_``, ``gather_`` or ``broadcast_``, here and in what calls them; a comment says why the order is the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfos_ml.data.schema import Array
from tfos_ml.errors import ClusterConfigError, PortTakenError
from tfos_ml.keras.collectives.sockets import WHOLE_BYTES, PeerAllReduce, PeerLostError, SilentWorkerError
from tfos_ml.keras.collectives.sparse_gradients import Joined, SparseGradients

BUCKET_BYTES = 32 << 20
_GROUP_KEY = 7077


class WorkerGroup:
    """The workers, one of which is this process; a context manager around what they do together.

    An operation fails if others do not join it within `timeout` seconds. `communication` ("auto", "ring", "nccl") is
    TensorFlow's implementation, used if `peers` is None.
    """

    def __init__(
        self, rank: int, size: int, timeout: float, communication: str = "auto", peers: PeerAllReduce | None = None
    ):
        self.rank = rank
        self.size = size
        self._timeout = timeout
        self._communication = communication
        self._peers = peers
        self._exchanges: tf.Variable | None = None  # counts them, so that TensorFlow keeps their order

    @classmethod
    def start(
        cls,
        rank: int,
        addresses: Sequence[str],
        timeout: float,
        communication: str = "auto",
        secret: bytes = b"",
        encrypts: bool = False,
        allows_plaintext: bool = False,
    ) -> WorkerGroup:
        """Connect with the others, whose `addresses` are "host:port" by rank, and who know the same `secret`.

        Without a secret, with GPUs, and with any `communication` but "auto", this starts TensorFlow's collective
        runtime. That is possible once per process, before any other use of TensorFlow.

        Raises ``ClusterConfigError`` if NCCL is requested and there is no GPU, or if this needs TensorFlow's runtime,
        which has no encryption, although `encrypts` is set and `allows_plaintext` is not. Raises ``PortTakenError`` if
        another process has taken this worker's port.
        """
        size = len(addresses)
        if size == 1:
            return cls(rank, size, timeout, communication)
        has_gpus = bool(tf.config.list_physical_devices("GPU"))
        if communication == "auto" and secret and not has_gpus:
            return cls(rank, size, timeout, communication, _connect(rank, addresses, secret, timeout, encrypts))
        if encrypts and not allows_plaintext:
            raise ClusterConfigError(
                "Spark is set to encrypt its traffic, but TensorFlow sees a GPU on this worker, and sums over GPUs "
                "travel through TensorFlow's gRPC or NCCL, which cannot be encrypted. Hide the GPUs "
                "(nodeEnv={'CUDA_VISIBLE_DEVICES': '-1'}), or start the session with "
                "spark.tfos_ml.allowPlaintext=true"
            )
        tf.distribute.MultiWorkerMirroredStrategy()
        if communication == "nccl" and not has_gpus:
            raise ClusterConfigError(
                "communication='nccl' needs a GPU on every worker, and TensorFlow sees none here. Use 'auto' or 'ring'"
            )
        return cls(rank, size, timeout, communication)

    @property
    def takes_any_shape(self) -> bool:
        """Whether one operation may have another shape in each step, as long as all workers have the same."""
        return self._peers is not None

    def __enter__(self) -> WorkerGroup:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        """Close the connections; a failure of `peers` becomes TensorFlow's error for a worker that ended or hangs."""
        if self._peers is None:
            return
        self._peers.close()
        failure = self._peers.failure
        if failure is not None and isinstance(error, Exception):  # of TensorFlow's, if it was in a function
            is_silent = isinstance(failure, SilentWorkerError)
            of_tensorflow = tf.errors.DeadlineExceededError if is_silent else tf.errors.UnavailableError
            raise of_tensorflow(None, None, str(failure)) from error

    def all_reduce(self, value: tf.Tensor, name: str, op: str = "Add") -> tf.Tensor:
        """Sum (``op="Max"``: maximum) of a tensor of one shape over all workers; also inside functions."""
        peers = self._peers
        if self.size == 1:
            return value
        if peers is not None and tf.executing_eagerly():
            return tf.constant(peers.all_reduce(value.numpy(), op))
        if peers is not None:
            (result,) = self._in_order(lambda array: peers.all_reduce(array, op), [value], [value.dtype])
            return tf.ensure_shape(result, value.shape)
        return tf.raw_ops.CollectiveReduceV2(
            input=value,
            group_size=self.size,
            group_key=_GROUP_KEY,
            instance_key=_key(f"{op}:{name}", value.dtype, value.shape),
            ordering_token=[],
            merge_op=op,
            final_op="Id",
            communication_hint=self._communication,
            timeout_seconds=self._timeout,
            is_stateless=False,
        )

    def _in_order(
        self, call: Callable[..., Any], values: Sequence[tf.Tensor], dtypes: Sequence[tf.DType]
    ) -> list[tf.Tensor]:
        """Run an exchange in a function, in the order of the program.

        TensorFlow would run whichever exchange is ready. But what assigns one variable, in a branch, too,
        runs in the order of the program.
        """
        if self._exchanges is None:
            with tf.init_scope():
                self._exchanges = tf.Variable(0, dtype=tf.int64, trainable=False)
        with tf.control_dependencies([self._exchanges.assign_add(1)]):
            results: list[tf.Tensor] = tf.numpy_function(call, values, dtypes)
            with tf.control_dependencies(results[:1]):
                self._exchanges.assign_add(1)
        return results

    def _all_gather(self, value: tf.Tensor, instance_key: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.CollectiveGatherV2(
            input=value,
            group_size=self.size,
            group_key=_GROUP_KEY,
            instance_key=instance_key,
            ordering_token=[],
            communication_hint=self._communication,
            timeout_seconds=self._timeout,
            is_stateless=False,
        )

    # In the training step

    def all_sum_gradients(
        self,
        gradients: Sequence[Any],
        weight: tf.Tensor,
        shapes: Sequence[tf.TensorShape],
        whole: Collection[int] = (),
        name: str = "gradients",
    ) -> list[Any]:
        """``weight``, a scalar, times each gradient, summed over all workers; the same on every worker.

        A weight of zero makes zeros of any numbers, also of those that are not finite.

        Gradients are tensors, ``IndexedSlices`` or None, of the same type on all workers. Dense ones are sent in flat
        buckets of at most 32 MiB, or together with slices if they are small. Slices of all workers are concatenated,
        as one worker would have them for all rows; slices at positions in `whole` have the same entries on all workers
        with rows, and are summed. `shapes` are those of the variables. The last variables are sent first, since
        backpropagation computes their gradients first.
        """
        summed: list[Any] = [None] * len(gradients)
        dense = {}
        slices = {}
        for i, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                slices[i] = gradient
            elif gradient is not None:
                dense[i] = tf.ensure_shape(tf.convert_to_tensor(gradient), shapes[i])
        buckets = _buckets(dict(reversed(dense.items())))
        own = [[dense[i] for i in bucket] for bucket in buckets]
        size = _bytes(dense.values())
        joins = bool(slices) and self._peers is not None and size * (self.size - 1) <= WHOLE_BYTES
        sums = [] if joins else [self._sum_bucket(parts, weight, f"{name}-{n}") for n, parts in enumerate(own)]
        if slices and self._peers is not None:
            flats = [_weighted(parts, weight) for parts in own] if joins else []
            joined, flats = self._joined_slices(slices, weight, shapes, flats)
            sums += map(_split, flats, own)
        elif slices:
            joined = self._gathered_slices(slices, weight, shapes, name)
        for i in slices:
            summed[i] = _sum_of_blocks(*joined[i], shapes[i]) if i in whole else joined[i][0]
        for bucket, totals in zip(buckets, sums, strict=True):
            for i, total in zip(bucket, totals, strict=True):
                summed[i] = total
        return summed

    def _sum_bucket(self, parts: Sequence[tf.Tensor], weight: tf.Tensor, name: str) -> list[tf.Tensor]:
        """``weight`` times tensors of one dtype, summed over all workers in one exchange."""
        is_small = _bytes(parts) <= WHOLE_BYTES  # then TensorFlow's copies take less time than many arrays
        if self._peers is None or is_small or tf.executing_eagerly():
            return _split(self.all_reduce(_weighted(parts, weight), name), parts)
        weight = tf.cast(weight, parts[0].dtype)
        sums = self._in_order(self._peers.all_sum_weighted, [weight, *parts], [part.dtype for part in parts])
        return [tf.ensure_shape(total, part.shape) for total, part in zip(sums, parts, strict=True)]

    def _gathered_slices(
        self, slices: dict[int, tf.IndexedSlices], weight: tf.Tensor, shapes: Sequence[tf.TensorShape], name: str
    ) -> Joined:
        """The slices of all workers, with TensorFlow's own operations."""
        counts = tf.stack([tf.shape(part.indices)[0] for part in slices.values()])
        longest = dict(zip(slices, tf.unstack(self.all_reduce(counts, f"{name}-slices", "Max")), strict=True))
        return {
            i: (self._gather_slices(part, weight, shapes[i], longest[i], f"slices-{i}"), longest[i])
            for i, part in slices.items()
        }

    def _joined_slices(
        self,
        slices: dict[int, tf.IndexedSlices],
        weight: tf.Tensor,
        shapes: Sequence[tf.TensorShape],
        dense: Sequence[tf.Tensor],
    ) -> tuple[Joined, list[tf.Tensor]]:
        """In one exchange the slices of all workers, with the largest number that a worker has, and dense sums."""
        peers, form = self._peers, SparseGradients(slices, shapes)
        assert peers is not None
        arrays = form.packed(weight, dense)

        def exchange(*own: Array) -> list[Array]:
            return form.join(own, peers.all_gather)

        return form.unpacked(self._in_order(exchange, arrays, [tf.int64, *(a.dtype for a in arrays)]))

    def _gather_slices(
        self, gradient: tf.IndexedSlices, weight: tf.Tensor, shape: tf.TensorShape, longest: tf.Tensor, name: str
    ) -> tf.IndexedSlices:
        """The slices of all workers, given the largest number that a worker has."""
        indices = tf.cast(gradient.indices, tf.int64)
        values = tf.ensure_shape(gradient.values, [None, *shape[1:]]) * tf.cast(weight, gradient.values.dtype)
        # Padded to a power of two: the runtime needs an instance key per shape, and keeps all of them.
        exponent = tf.cast(tf.math.ceil(tf.math.log(tf.cast(tf.maximum(longest, 1), tf.float64)) / np.log(2)), tf.int32)
        missing = tf.bitwise.left_shift(1, exponent) - tf.shape(indices)[0]
        key = _key(name, values.dtype, values.shape) & ~0xFF  # and one for each power of two
        indices = self._all_gather(tf.pad(indices, [[0, missing]], constant_values=-1), key + exponent)
        padding = [[0, missing]] + [[0, 0]] * (values.shape.rank - 1)
        values = tf.ensure_shape(self._all_gather(tf.pad(values, padding), key + 128 + exponent), [None, *shape[1:]])
        real = tf.where(indices >= 0)[:, 0]
        indices = tf.cast(tf.gather(indices, real), gradient.indices.dtype)
        return tf.IndexedSlices(tf.gather(values, real), indices, tf.constant(shape.as_list()))

    # Between steps

    def all_sum(self, arrays: Sequence[Array]) -> list[Array]:
        """Sums over all workers of arrays that have the same shapes and dtypes on each."""
        if self.size == 1:
            return list(arrays)
        summed: list[Array] = [np.asarray(a) for a in arrays]
        for dtype in sorted({a.dtype.name for a in summed}):
            places = [i for i, a in enumerate(summed) if a.dtype.name == dtype]
            flat = np.concatenate([summed[i].reshape(-1) for i in places])
            for part in _cut(flat):
                part[:] = self._sum_flat(part)
            ends = np.cumsum([summed[i].size for i in places])[:-1]
            for i, part in zip(places, np.split(flat, ends), strict=True):
                summed[i] = part.reshape(summed[i].shape)
        return summed

    def _sum_flat(self, part: Array) -> Array:
        if self._peers is not None:
            self._peers.all_reduce_in_place(part)
            return part
        wide = part.astype(np.int64) if part.dtype.kind in "iub" and part.dtype != np.int32 else part
        return np.asarray(self.all_reduce(tf.constant(wide), "arrays").numpy().astype(part.dtype))

    def broadcast_arrays(self, arrays: Sequence[Array], is_source: bool) -> list[Array]:
        """The arrays of the worker with `is_source`, on all workers."""
        return self.all_sum([a if is_source else np.zeros_like(a) for a in arrays])

    def broadcast_bytes(self, data: bytes, is_source: bool) -> bytes:
        """The bytes of the worker with `is_source`, on all workers."""
        if self.size == 1:
            return data
        (length,) = self.broadcast_arrays([np.array([len(data)], np.int64)], is_source)
        words = np.zeros(-(-int(length[0]) // 4), np.int32)
        if is_source:
            words.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
        return self.broadcast_arrays([words], is_source)[0].tobytes()[: int(length[0])] if len(words) else b""

    def all_max_number(self, value: float) -> float:
        """The maximum over workers of a number."""
        return float(self.all_max(np.array([value], np.float64))[0])

    def all_max(self, values: Array) -> Array:
        """The maximum over workers of each number."""
        return np.asarray(self.all_reduce(tf.constant(values), "all_max", "Max"))


def _connect(rank: int, addresses: Sequence[str], secret: bytes, timeout: float, encrypts: bool) -> PeerAllReduce:
    try:
        return PeerAllReduce.connect(rank, addresses, secret, timeout, encrypts)
    except PeerLostError as error:
        raise tf.errors.DeadlineExceededError(None, None, str(error)) from None
    except OSError as error:
        raise PortTakenError(
            f"The port of {addresses[rank]}, which was reserved for this worker, cannot be used: {error}. Another "
            "program has taken it. Run again, or keep a range of ports free with spark.tfos_ml.nodePorts."
        ) from None


def _key(name: str, dtype: Any, shape: Any) -> int:
    """A number of 30 bits that is the same on every worker for the same operation."""
    return zlib.crc32(f"{name}:{dtype.name}:{shape}".encode()) & 0x3FFFFFFF


def _sum_of_blocks(joined: tf.IndexedSlices, length: tf.Tensor, shape: tf.TensorShape) -> tf.IndexedSlices:
    """The sum of blocks of slices, one after another, each of the same `length` entries of a table."""
    length = tf.cast(length, tf.int32)
    blocks = tf.reshape(joined.values, tf.stack([-1, length, *shape[1:]]))
    return tf.IndexedSlices(tf.reduce_sum(blocks, 0), joined.indices[:length], joined.dense_shape)


def _buckets(dense: dict[int, tf.Tensor]) -> list[list[int]]:
    """Gradients of one dtype side by side, in buckets of at most ``BUCKET_BYTES`` (or one gradient)."""
    buckets: list[list[int]] = []
    left: dict[str, int] = {}  # bytes that the last bucket of a dtype may still take
    last: dict[str, list[int]] = {}
    for i, gradient in dense.items():
        dtype, size = gradient.dtype.name, gradient.shape.num_elements() * gradient.dtype.size
        if size > left.get(dtype, 0):
            last[dtype], left[dtype] = [], BUCKET_BYTES
            buckets.append(last[dtype])
        last[dtype].append(i)
        left[dtype] -= size
    return buckets


def _bytes(parts: Iterable[tf.Tensor]) -> int:
    size: int = sum(part.shape.num_elements() * part.dtype.size for part in parts)
    return size


def _weighted(parts: Sequence[tf.Tensor], weight: tf.Tensor) -> tf.Tensor:
    """``weight`` times tensors of one dtype, as one flat tensor; zeros if the weight is zero."""
    flat = tf.concat([tf.reshape(part, [-1]) for part in parts], 0)
    return tf.math.multiply_no_nan(flat, tf.cast(weight, flat.dtype))


def _split(flat: tf.Tensor, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """A flat tensor as tensors of the shapes of `parts`."""
    flats = tf.split(flat, [part.shape.num_elements() for part in parts])
    return [tf.reshape(flat, part.shape) for flat, part in zip(flats, parts, strict=True)]


def _cut(flat: Array) -> list[Array]:
    rows = max(1, BUCKET_BYTES // flat.itemsize)
    return [flat[i : i + rows] for i in range(0, len(flat), rows)] or [flat]
