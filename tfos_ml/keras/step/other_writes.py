"""Finds weights that a step of training changes in another way than with an optimizer of Keras.

The gradients of an optimizer are exchanged between the workers; what a step assigns by itself is not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfos_ml.keras import privates


class OtherWrites:
    """Finds the weights of a model that a traced step writes, but not by an optimizer."""

    def __init__(self, model: keras.Model):
        self._model = model
        self.begin()

    def begin(self) -> None:
        """Begin to trace a step."""
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self._of_updates: list[range] = []  # positions of the operations of optimizers
        self._updated: set[int] = set()  # variables that are updated in a branch of the step

    @contextlib.contextmanager
    def allowed(self, variables: Sequence[Any]) -> Iterator[None]:
        """An update of variables by an optimizer."""
        graph = self._graph
        if graph is None or graph is not tf.compat.v1.get_default_graph():
            self._updated |= {id(getattr(v, "value", v)) for v in variables}
            yield
            return
        first = len(graph.get_operations())
        yield
        self._of_updates.append(range(first, len(graph.get_operations())))

    def end(self, expected: Sequence[Any]) -> list[Any]:
        """The trainable variables that the step writes otherwise, without those that are `expected`."""
        if self._graph is None:
            return []
        known = self._updated | {id(getattr(v, "value", v)) for v in expected}
        weights = {id(v.value): v for v in self._model.trainable_variables if id(v.value) not in known}
        values = [v.value for v in weights.values()]
        return [weights[id(v)] for v in privates.written_variables(self._graph, values, self._of_updates)]
