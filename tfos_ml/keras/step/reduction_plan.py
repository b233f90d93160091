"""How the results of workers are combined where that does not follow from Keras's own classes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PassReductions:
    """How metrics and logs of a training or validation pass are combined."""

    by_step: tuple[int, ...] = ()  # places, in ``metric_variables``, of state that a step updates once, not per row
    own_logs: tuple[str, ...] = ()  # those that are not results of metrics
    summed_logs: tuple[str, ...] = ()  # those of them that are sums over rows
    renamed: tuple[tuple[str, str], ...] = ()  # logs that are results of metrics, and the other names of these metrics
    inexact: tuple[str, ...] | None = None  # metrics whose states cannot be added up; None if that was not tried
    draws: tuple[bool, ...] = ()  # whether each draw of random numbers of a step is one for rows, in order


@dataclass(frozen=True)
class ReductionPlan:
    """How the workers' results are combined where this differs from Keras's own models."""

    sums: tuple[str, ...] = ()  # terms of the loss, by their names in ``LossTerms``, that are sums over rows, not means
    together: tuple[str, ...] = ()  # terms that need all rows of a step together
    gradient_is_sum: bool = False  # whether the gradients of a custom ``train_step`` are sums over rows
    whole_slices: tuple[int, ...] = ()  # places of gradients, slices of a table, with the same entries for any rows
    assigned: tuple[int, ...] = ()  # places, in ``TrainingVariables.of_program``, of those that a step assigns itself
    train: PassReductions = PassReductions()
    test: PassReductions = PassReductions()
    has_local_statistics: bool = False  # whether BatchNormalization uses the statistics of each worker's own rows
    notices: tuple[str, ...] = ()  # for the user
