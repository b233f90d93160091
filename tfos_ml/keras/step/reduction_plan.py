"""How the results of workers are combined where that does not follow from Keras's own classes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PassReductions:
    """How metrics and logs of a training or validation pass are combined.

    Attributes
    ----------
    by_step : tuple of int
        Positions, in ``metric_variables``, of state that is updated once per step, not once per row.
    own_logs, summed_logs : tuple of str
        Logs that are not results of metrics, and those of them that are sums over rows.
    renamed : tuple of (str, str)
        Logs that are results of metrics under other names, and the names of these metrics.
    inexact : tuple of str, or None
        Metrics whose states cannot be added up; None if that was not tried.
    draws : tuple of bool
        Whether each draw of random numbers of a step is one for rows, in order.
    """

    by_step: tuple[int, ...] = ()
    own_logs: tuple[str, ...] = ()
    summed_logs: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    inexact: tuple[str, ...] | None = None
    draws: tuple[bool, ...] = ()


@dataclass(frozen=True)
class ReductionPlan:
    """How the workers' results are combined where this differs from Keras's own models.

    Attributes
    ----------
    sums : tuple of str
        Terms of the loss, by their names in ``LossTerms``, that are sums over rows, not means.
    together : tuple of str
        Terms that need all rows of a step together.
    gradient_is_sum : bool
        Whether the gradients of a custom ``train_step`` are sums over rows.
    whole_slices : tuple of int
        Positions of gradients, slices of a table, that have the same entries for any rows.
    assigned : tuple of int
        Positions, in ``TrainingVariables.of_program``, of those that a step assigns itself.
    train, test : PassReductions
        ReductionPlan for each pass.
    has_local_statistics : bool
        Whether BatchNormalization uses the statistics of each worker's own rows.
    notices : tuple of str
        Messages for the user.
    """

    sums: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    gradient_is_sum: bool = False
    whole_slices: tuple[int, ...] = ()
    assigned: tuple[int, ...] = ()
    train: PassReductions = PassReductions()
    test: PassReductions = PassReductions()
    has_local_statistics: bool = False
    notices: tuple[str, ...] = ()
