"""Makes the random numbers of a training step those that one worker would draw for all rows of the step.

All workers have the same state of every seed generator, and Keras's random functions depend only on that state. So in
each step, every worker draws numbers for the rows of all workers, and takes those of its own rows. Dropout, noise and
random augmentation then are the same as in plain Keras, for any number of workers.

A draw counts as one for rows if its first dimension is unknown before the step, unless a try of a step has shown that
it does not depend on the rows, as the length of texts. Other draws are the same on all workers. If the first dimension
of a draw for rows is no multiple of them, the step fails, since no worker knows which numbers are its own.

TensorFlow's generator is a counter, encrypted (Philox; Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC
2011): each value of the counter gives four numbers. So a dropout of large rows draws each row alone.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfos_ml.errors import ModelError
from tfos_ml.keras import privates

_PHILOX, _PHILOX_NUMBERS = 1, 4  # TensorFlow's number of the generator; float32 numbers of one counter
LARGE_ROW = 1024  # numbers; below it, one draw for all rows takes less time than one for each row
_ROWS_AT_ONCE = 16  # rows drawn in one turn of the loop, whose overhead is that of ten thousand numbers
NOT_BY_ROW = (
    "A step draws random numbers for a tensor that has no fixed number of entries for each row, as after "
    "tf.boolean_mask, or in a ragged tensor, and several workers cannot draw those that one would. Draw for all "
    "positions of the rows, for example by Dropout, before you select some; or use clusterSize=1."
)
_UNMATCHED = (
    "A training step draws random numbers in another order than when it was tried, as by a loop of TensorFlow's, and "
    "some do not belong to rows. Several workers cannot draw those that one would. Use clusterSize=1."
)
_BY_SHAPE = ("normal", "uniform", "truncated_normal", "randint", "gamma", "binomial", "beta")


class RowsOfStep:
    """The places of this worker's rows among the `total` rows of a step: `places`, int64 ``(rows,)``.

    `known` is whether each draw of the step is one for rows, in order, if that was tried; ``drawn`` has what was
    decided.
    """

    def __init__(self, places: tf.Tensor, total: tf.Tensor, known: Sequence[bool] = ()):
        self.known, self.drawn = known, list[bool]()
        self._depends_on_order = False
        self.places = tf.ensure_shape(places, [None])
        self.total = tf.cast(total, tf.int64)
        self.count = tf.shape(self.places, out_type=tf.int64)[0]

    @contextlib.contextmanager
    def draws(self) -> Iterator[None]:
        """Within this context, Keras's random functions draw for all rows of the step."""
        plain = privates.random_functions()
        ours = {name: self._by_shape(plain[name]) for name in _BY_SHAPE}
        ours |= {"categorical": self._categorical(plain["categorical"]), "dropout": self._dropout(plain["dropout"])}
        with privates.replaced_random_functions(ours):
            yield
        if self._depends_on_order and len(self.drawn) != len(self.known):
            raise ModelError(_UNMATCHED)

    def _by_shape(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def draw(shape: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._decide(shape):
                return plain(shape, *args, **kwargs)
            whole, times = self._global_shape(shape)
            parameters = [self._global_parameter(a, times) for a in args]
            named = {name: a if name == "seed" else self._global_parameter(a, times) for name, a in kwargs.items()}
            return self._local(plain(whole, *parameters, **named), times)

        return draw

    def _categorical(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def draw(logits: Any, *args: Any, **kwargs: Any) -> Any:
            logits = tf.convert_to_tensor(logits)
            if not self._decide(tf.shape(logits)):
                return plain(logits, *args, **kwargs)
            times = self._times(tf.shape(logits)[0])
            return self._local(plain(self._global_parameter(logits, times), *args, **kwargs), times)

        return draw

    def _dropout(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def dropout(inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
            inputs = tf.convert_to_tensor(inputs)
            sizes = tf.shape(inputs)
            shape = sizes if noise_shape is None else [sizes[i] if n is None else n for i, n in enumerate(noise_shape)]
            if not self._decide(shape) or rate in (0.0, 1.0):
                return plain(inputs, rate, noise_shape, seed)
            whole, times = self._global_shape(shape)
            row, generator = _known(inputs.shape if noise_shape is None else shape), privates.drawn_seed(seed)
            if inputs.dtype == "float32" and row and _is_drawn_alone(math.prod(row)):
                is_kept = self._is_kept(generator, row, times, rate)
            else:
                is_kept = self._local(tf.random.stateless_uniform(whole, generator, dtype=inputs.dtype) >= rate, times)
            kept = tf.where(is_kept, inputs * (1 / (1 - rate)), tf.zeros((), inputs.dtype))
            return tf.ensure_shape(kept, inputs.shape)

        return dropout

    def _is_kept(self, seed: tf.Tensor, row: Sequence[int], times: tf.Tensor, rate: float) -> tf.Tensor:
        """Which elements of this worker's rows a dropout of all rows keeps: those whose number is not below `rate`."""
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
        more = tf.stack([0, -self.count % _ROWS_AT_ONCE])[None, :]  # rows of no numbers, to make the last turn full
        first = tf.pad(self.places * times * (math.prod(row) // _PHILOX_NUMBERS), more)
        starts = counter + tf.cast(tf.stack([first, tf.zeros_like(first)], 1), tf.uint64)
        lengths = tf.pad(tf.fill([self.count], times), more)
        shapes = tf.stack([tf.cast(lengths, tf.int32), *(tf.fill(tf.shape(lengths), part) for part in row)], 1)
        turns = tf.size(lengths) // _ROWS_AT_ONCE
        starts, shapes = (tf.reshape(t, [turns, _ROWS_AT_ONCE, t.shape[1]]) for t in (starts, shapes))

        def draw(turn: tf.Tensor, drawn: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            parts = [
                tf.raw_ops.StatelessRandomUniformV2(shape=shape, key=key, counter=start, alg=_PHILOX, dtype=tf.float32)
                >= rate
                for shape, start in zip(tf.unstack(shapes[turn]), tf.unstack(starts[turn]), strict=True)
            ]
            return turn + 1, drawn.write(turn, tf.concat(parts, 0))

        drawn = tf.TensorArray(tf.bool, turns, infer_shape=False, element_shape=[None, *row])
        return tf.while_loop(lambda turn, _: turn < turns, draw, [tf.constant(0), drawn])[1].concat()

    def _decide(self, shape: Any) -> bool:
        """Whether the next draw is one for rows."""
        place, is_of_rows = len(self.drawn), self._is_of_rows(shape)
        if is_of_rows and place < len(self.known):
            is_of_rows = self.known[place]
            self._depends_on_order |= not is_of_rows
        self.drawn.append(is_of_rows)
        return is_of_rows

    def _is_of_rows(self, shape: Any) -> bool:
        """Whether the first dimension of a shape is known only in the step."""
        if tf.is_tensor(shape):
            known = tf.get_static_value(shape, partial=True)
            return known is None or (len(known) > 0 and known[0] is None)
        return len(shape) > 0 and tf.is_tensor(shape[0]) and tf.get_static_value(shape[0]) is None

    def _global_shape(self, shape: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """The shape for all rows, and how many numbers each row has in the first dimension."""
        parts = tf.unstack(shape) if tf.is_tensor(shape) else list(shape)
        times = self._times(parts[0])
        return tf.stack([tf.cast(times * self.total, tf.int32), *(tf.cast(p, tf.int32) for p in parts[1:])]), times

    def _times(self, first: Any) -> tf.Tensor:
        """How often a first dimension has each row."""
        first = tf.cast(first, tf.int64)
        with tf.control_dependencies([tf.debugging.Assert(first % self.count == 0, [NOT_BY_ROW])]):
            return first // self.count

    def _positions(self, times: tf.Tensor) -> tf.Tensor:
        return tf.reshape(self.places[:, None] * times + tf.range(times)[None, :], [-1])

    def _local(self, drawn: tf.Tensor, times: tf.Tensor) -> tf.Tensor:
        """The part of a draw for the rows of this worker."""
        return tf.gather(drawn, self._positions(times))

    def _global_parameter(self, parameter: Any, times: tf.Tensor) -> Any:
        """A parameter with a value for each row, with ones for the rows of other workers."""
        if not tf.is_tensor(parameter) or not parameter.shape.rank:
            return parameter
        known = parameter.shape[0]
        if known is not None and not (tf.executing_eagerly() and known == int(times * self.count)):
            return parameter
        shape = tf.concat([[tf.cast(times * self.total, tf.int32)], tf.shape(parameter)[1:]], 0)
        return tf.tensor_scatter_nd_update(tf.ones(shape, parameter.dtype), self._positions(times)[:, None], parameter)


def _is_drawn_alone(numbers: int) -> bool:
    """Whether a row of so many numbers is drawn alone."""
    return numbers >= LARGE_ROW and numbers % _PHILOX_NUMBERS == 0


def _known(shape: Sequence[Any]) -> list[int] | None:
    """All dimensions but the first, if they are known before the step."""
    known = [tf.get_static_value(part) if tf.is_tensor(part) else part for part in shape[1:]]
    return None if None in known else [int(part) for part in known]
