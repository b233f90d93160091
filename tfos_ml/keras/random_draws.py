"""Makes the random numbers of a training step those that one worker would draw for all rows of the step.

All workers have the same state of every seed generator, and Keras's random functions depend only on that state. So in
each step, every worker draws numbers for the rows of all workers, and takes those of its own rows. Dropout, noise and
random augmentation then are the same as in plain Keras, for any number of workers.

A draw counts as one for rows if its first dimension is unknown before the step and is a multiple of this worker's rows.
Other draws are the same on all workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfos_ml.worker import keras_privates

_BY_SHAPE = ("normal", "uniform", "truncated_normal", "randint", "gamma", "binomial", "beta")


class RowsOfStep:
    """The places of this worker's rows among the `total` rows of a step: `places`, int64 ``(rows,)``."""

    def __init__(self, places: tf.Tensor, total: tf.Tensor):
        self.places = tf.ensure_shape(places, [None])
        self.total = tf.cast(total, tf.int64)
        self.count = tf.shape(self.places, out_type=tf.int64)[0]

    @contextlib.contextmanager
    def draws(self) -> Iterator[None]:
        """Within this context, Keras's random functions draw for all rows of the step."""
        plain = keras_privates.random_functions()
        ours = {name: self._by_shape(plain[name]) for name in _BY_SHAPE}
        ours |= {"categorical": self._categorical(plain["categorical"]), "dropout": self._dropout(plain["dropout"])}
        with keras_privates.replaced_random_functions(ours):
            yield

    def _by_shape(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def draw(shape: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_of_rows(shape):
                return plain(shape, *args, **kwargs)
            whole, times = self._whole(shape)
            parameters = [self._spread(a, times) for a in args]
            named = {name: a if name == "seed" else self._spread(a, times) for name, a in kwargs.items()}
            return self._own(plain(whole, *parameters, **named), times)

        return draw

    def _categorical(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def draw(logits: Any, *args: Any, **kwargs: Any) -> Any:
            logits = tf.convert_to_tensor(logits)
            if not self._is_of_rows(tf.shape(logits)):
                return plain(logits, *args, **kwargs)
            times = tf.shape(logits, out_type=tf.int64)[0] // self.count
            return self._own(plain(self._spread(logits, times), *args, **kwargs), times)

        return draw

    def _dropout(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def dropout(inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
            inputs = tf.convert_to_tensor(inputs)
            shape = keras_privates.noise_shape_of(inputs, noise_shape)
            if rate in (0.0, 1.0) or not self._is_of_rows(shape):
                return plain(inputs, rate, noise_shape, seed)
            whole, times = self._whole(shape)
            # By ones it is the factor of each element: 0, or 1 / (1 - rate) as plain Keras multiplies.
            factors = self._own(plain(tf.ones(whole, inputs.dtype), rate, None, seed), times)
            return tf.ensure_shape(inputs * factors, inputs.shape)

        return dropout

    def _is_of_rows(self, shape: Any) -> bool:
        """Whether the first dimension of a shape is known only in the step."""
        if tf.is_tensor(shape):
            known = tf.get_static_value(shape, partial=True)
            return known is None or (len(known) > 0 and known[0] is None)
        return len(shape) > 0 and tf.is_tensor(shape[0]) and tf.get_static_value(shape[0]) is None

    def _whole(self, shape: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """The shape for all rows, and how many numbers each row has in the first dimension."""
        parts = tf.unstack(shape) if tf.is_tensor(shape) else list(shape)
        times = tf.cast(parts[0], tf.int64) // self.count
        return tf.stack([tf.cast(times * self.total, tf.int32), *(tf.cast(p, tf.int32) for p in parts[1:])]), times

    def _at(self, times: tf.Tensor) -> tf.Tensor:
        return tf.reshape(self.places[:, None] * times + tf.range(times)[None, :], [-1])

    def _own(self, drawn: tf.Tensor, times: tf.Tensor) -> tf.Tensor:
        """The part of a draw for the rows of this worker."""
        return tf.gather(drawn, self._at(times))

    def _spread(self, parameter: Any, times: tf.Tensor) -> Any:
        """A parameter with a value for each row, with ones for the rows of other workers."""
        if not tf.is_tensor(parameter) or not parameter.shape.rank or not self._is_of_rows(tf.shape(parameter)):
            return parameter
        shape = tf.concat([[tf.cast(times * self.total, tf.int32)], tf.shape(parameter)[1:]], 0)
        return tf.tensor_scatter_nd_update(tf.ones(shape, parameter.dtype), self._at(times)[:, None], parameter)
