"""How the rows of a fit come to the nodes: Spark feeds them, or the nodes read files themselves; and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tfos_ml.data.file_plan import FilePlan
from tfos_ml.driver.file_scan import NotDirectError
from tfos_ml.errors import InputPathError

MOST_READERS = 4
"""Nodes up to which "auto" has them read files: each reads all of them, and keeps its share of the rows."""


@dataclass(frozen=True)
class InputChoice:
    """The way that rows take, and why."""

    plan: FilePlan | None  # None: Spark feeds the rows
    reason: str

    def __str__(self) -> str:
        return f"{'spark' if self.plan is None else 'direct'}: {self.reason}"


def choose_input(path: str, readers: int, make_plan: Callable[[], FilePlan]) -> InputChoice:
    """The way of the rows by the Param ``inputPath``, "direct" or "auto", with so many nodes that take rows.

    `make_plan` raises ``NotDirectError`` if files cannot be read by nodes. Raises ``InputPathError`` if they must be.
    """
    if path == "auto" and readers > MOST_READERS:
        return InputChoice(
            None, f"inputPath='auto' has at most {MOST_READERS} nodes read all files, and {readers} take rows"
        )
    try:
        plan = make_plan()
    except NotDirectError as error:
        if path == "direct":
            raise InputPathError(
                f"inputPath='direct', but nodes cannot read the files of the DataFrame themselves: {error}. Set "
                "inputPath='auto' or 'spark', or write the rows to Parquet files and read those (spark.read.parquet)."
            ) from None
        return InputChoice(None, str(error))
    share = "keeps all rows" if readers == 1 else f"keeps one row of {readers}"
    return InputChoice(
        plan,
        f"a plain scan of {len(plan.files):,} Parquet file(s) with {plan.row_groups:,} row group(s) and {plan.rows:,} "
        f"row(s){' before the filter' * (plan.condition is not None)}; each node reads them and {share}",
    )
