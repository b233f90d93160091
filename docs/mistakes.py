"""Make common mistakes in a real Spark session, and write what the console shows to docs/reference/mistakes.rst.

Each function with ``@mistake`` gets a :class:`Table` and does something wrong, so that an error is raised or a warning
shown. All run in one new driver process at Spark's default log level. A file takes its console: the lines of the
driver, of the JVM, and of the nodes, which share it in local mode.

    python docs/mistakes.py [--only WORD] [--output docs/reference/mistakes.rst]
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINES = 30
SETTLE_SECONDS, SETTLE_SECONDS_OF_JOB, SETTLE_DEADLINE = 0.1, 1.0, 15.0
TIMEOUT = 3600
BEGINNING = """\
Common mistakes
===============

This page shows {number} common mistakes, and the error or warning that each causes. The driver raises an error before
it starts a Spark job if it can detect the mistake.

``table.df`` is a DataFrame with a column ``features`` (arrays of four floats) and a column ``label`` (0, 1 or 2).
``keras_model()`` returns a compiled classifier for it. The console also shows a traceback above each error, which this
page leaves out. ``python docs/mistakes.py`` makes all mistakes in a Spark session and writes this page.
"""


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Attributes
    ----------
    title : str
        What is wrong.
    make : callable
        Makes it.
    is_known_before : bool
        Whether the driver can know before it starts a job.
    """

    title: str
    make: Callable[[Table], Any]
    is_known_before: bool


@dataclass(frozen=True)
class Outcome:
    """The result of one: the class of its error or warning, whether it is ours, the jobs started, and the console."""

    name: str
    title: str
    error: str
    is_typed: bool
    is_known_before: bool
    jobs: int
    console: str

    @property
    def lines(self) -> int:
        """Lines on the console."""
        return len(self.console.splitlines())


MISTAKES: list[Mistake] = []


def mistake(title: str, *, known: bool) -> Callable[[Callable[[Table], Any]], Callable[[Table], Any]]:
    """Add a mistake to the page; `known` says whether the driver can know of it before it starts a job."""

    def add(make: Callable[[Table], Any]) -> Callable[[Table], Any]:
        MISTAKES.append(Mistake(title, make, known))
        return make

    return add


class Table:
    """A session, a small DataFrame in it, and models to train."""

    def __init__(self) -> None:
        from pyspark.sql import SparkSession
        from pyspark.sql import functions as F

        self.spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
        self.F = F
        rows = self.spark.range(0, 100, 1, 4)
        features = F.array(*[(F.col("id") % n / n).cast("float") for n in (2, 3, 5, 7)])
        self.df = rows.select(features.alias("features"), (F.col("id") % 3).cast("int").alias("label"))
        self.directory = tempfile.mkdtemp(prefix="tfos_ml-mistakes-")

    def jobs(self) -> int:
        """How many Spark jobs there have been, but for those that prepare executors and read no rows."""
        from tfos_ml.driver.executor_check import PROBE_TAG

        jobs = self.spark.sparkContext._jsc.sc().statusStore().jobsList(None)
        tags = [jobs.apply(i).jobTags().mkString() for i in range(jobs.size())]
        return len([tag for tag in tags if PROBE_TAG not in tag])


def keras_model(units: int = 3, loss: str = "sparse_categorical_crossentropy") -> Any:
    """A small compiled classifier of four numbers."""
    import keras

    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(units, activation="softmax")])
    model.compile("sgd", loss)
    return model


def train_fn(args: Any, ctx: Any) -> None:
    """A train function with nothing wrong but that it trains nothing."""
    for _ in ctx.dataset():
        pass


# Input


@mistake("Passing a pandas DataFrame", known=True)
def pandas_dataframe(table: Table) -> None:
    import pandas as pd

    from tfos_ml import KerasEstimator

    KerasEstimator(model=keras_model()).fit(pd.DataFrame({"features": [[1.0] * 4], "label": [0]}))


@mistake("Misspelling a Param", known=True)
def misspelled_param(table: Table) -> None:
    from tfos_ml import KerasEstimator

    KerasEstimator(model=keras_model(), epoch=5)


@mistake("Naming a column that does not exist", known=True)
def missing_column(table: Table) -> None:
    from tfos_ml import KerasEstimator

    KerasEstimator(model=keras_model(), featuresCol="feature").fit(table.df)


@mistake("Using strings as labels", known=True)
def text_label(table: Table) -> None:
    from tfos_ml import KerasEstimator

    words = table.df.withColumn("label", table.F.col("label").cast("string"))
    KerasEstimator(model=keras_model()).fit(words)


@mistake("Passing vectors of the wrong length", known=True)
def vector_length(table: Table) -> None:
    from pyspark.ml.feature import VectorAssembler

    from tfos_ml import KerasEstimator

    rows = table.df.select(table.F.col("features")[0].alias("a"), table.F.col("features")[1].alias("b"), "label")
    vectors = VectorAssembler(inputCols=["a", "b"], outputCol="features").transform(rows)
    KerasEstimator(model=keras_model()).fit(vectors)


@mistake("Using integer labels with categorical_crossentropy", known=True)
def label_shape(table: Table) -> None:
    from tfos_ml import KerasEstimator

    KerasEstimator(model=keras_model(loss="categorical_crossentropy")).fit(table.df)


@mistake("Requesting more nodes than task slots", known=True)
def too_many_nodes(table: Table) -> None:
    from tfos_ml import KerasEstimator

    KerasEstimator(model=keras_model(), clusterSize=8).fit(table.df)


@mistake("Naming an exportDir that is in use", known=True)
def used_directory(table: Table) -> None:
    from tfos_ml import KerasEstimator

    KerasEstimator(model=keras_model(), exportDir="/etc").fit(table.df)


# Models


@mistake("Passing a model that is not compiled", known=True)
def not_compiled(table: Table) -> None:
    import keras

    from tfos_ml import KerasEstimator

    KerasEstimator(model=keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)]))


@mistake("Leaving out inputMapping for several inputs", known=True)
def several_inputs(table: Table) -> None:
    import keras

    from tfos_ml import KerasEstimator

    a, b = keras.layers.Input((4,), name="left"), keras.layers.Input((4,), name="right")
    model = keras.Model([a, b], keras.layers.Dense(1)(keras.layers.Concatenate()([a, b])))
    model.compile("sgd", "mse")
    KerasEstimator(model=model).fit(table.df.withColumnRenamed("features", "left"))


def _text_model() -> Any:
    import keras

    layers = keras.layers
    text = layers.TextVectorization(max_tokens=100, output_sequence_length=4, name="words")
    model = keras.Sequential([layers.Input((), dtype="string"), text, layers.Embedding(100, 2), layers.Flatten()])
    model.compile("sgd", "mse")
    return model


@mistake("Using a preprocessing layer that is not adapted", known=True)
def not_adapted(table: Table) -> None:
    from tfos_ml import KerasEstimator

    texts = table.df.withColumn("features", table.F.lit("a text"))
    KerasEstimator(model=_text_model()).fit(texts)


@mistake("Using an object that cannot be pickled", known=True)
def lock_in_model_function(table: Table) -> None:
    import threading

    from tfos_ml import KerasEstimator

    lock = threading.Lock()

    def make_model() -> Any:
        with lock:
            return keras_model()

    KerasEstimator(model=make_model).fit(table.df)


# On the nodes


@mistake("Raising an error in a train function", known=False)
def train_function_raises(table: Table) -> None:
    from tfos_ml import TFEstimator

    def train(args: Any, ctx: Any) -> None:
        rates = {"fast": 0.1}
        print("learning rate", rates["slow"])

    TFEstimator(trainFn=train, clusterSize=2).fit(table.df)


@mistake("Calling sys.exit in a train function", known=False)
def train_function_exits(table: Table) -> None:
    from tfos_ml import TFEstimator

    def train(args: Any, ctx: Any) -> None:
        if not args.get("data_dir"):
            sys.exit(1)

    TFEstimator(trainFn=train, clusterSize=2).fit(table.df)


@mistake("Running out of memory", known=False)
def killed(table: Table) -> None:
    import signal

    from tfos_ml import TFEstimator

    TFEstimator(trainFn=lambda args, ctx: os.kill(os.getpid(), signal.SIGKILL)).fit(table.df)


@mistake("Importing a module that the nodes do not have", known=False)
def missing_module(table: Table) -> None:
    from tfos_ml import TFEstimator

    def train(args: Any, ctx: Any) -> None:
        import tensorflow_nowhere  # noqa: F401

    TFEstimator(trainFn=train).fit(table.df)


@mistake("Setting the learning rate too high", known=False)
def loss_is_nan(table: Table) -> None:
    from tfos_ml import KerasEstimator

    def make_model() -> Any:
        import keras

        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e30), "mse")
        return model

    KerasEstimator(model=make_model, batchSize=10, epochs=3).fit(table.df)


@mistake("Training on nulls", known=False)
def nulls(table: Table) -> None:
    from tfos_ml import KerasEstimator

    some = table.F.when(table.F.col("label") > 0, table.F.col("label")).alias("label")
    KerasEstimator(model=keras_model()).fit(table.df.select("features", some))


@mistake("Training on rows of different lengths", known=False)
def ragged_rows(table: Table) -> None:
    from tfos_ml import KerasEstimator

    ragged = table.F.slice("features", 1, table.F.col("label") + 2)
    KerasEstimator(model=keras_model()).fit(table.df.withColumn("features", ragged))


@mistake("Numbering labels from 1", known=False)
def labels_from_one(table: Table) -> None:
    from tfos_ml import KerasEstimator

    KerasEstimator(model=keras_model()).fit(table.df.withColumn("label", table.F.col("label") + 1))


@mistake("Training on several nodes without a strategy", known=False)
def half_the_data(table: Table) -> None:
    from tfos_ml import TFEstimator

    def train(args: Any, ctx: Any) -> None:
        model = keras_model()
        model.fit(ctx.dataset(), verbose=0)
        ctx.export_saved_model(model)

    TFEstimator(trainFn=train, clusterSize=2).fit(table.df)


@mistake("Forgetting to export the model", known=False)
def exports_nothing(table: Table) -> None:
    from tfos_ml import TFEstimator

    TFEstimator(trainFn=train_fn).fit(table.df)


# Run them


def as_seen(text: str) -> str:
    """The text as a terminal shows it after bars have been redrawn, without what differs between runs."""
    shown = "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1].rstrip() for line in text.split("\n")).strip("\n")
    for pattern, instead in (
        (re.escape(f"{ROOT}/"), ""),
        (r'File "[^"]*/(?=(?:site-packages|lib/python3[.\d]*)/)', 'File ".../'),
        (r"\btfos_ml-mistakes-\w+", "tfos_ml-mistakes"),
        (r"0x[0-9a-f]{6,}", "0x..."),
        (r"^\d\d/\d\d/\d\d \d\d:\d\d:\d\d (?=[A-Z]+ )", ""),
        (r"\((?!127\.)\d+\.\d+\.\d+\.\d+ executor", "(host executor"),
    ):
        shown = re.sub(pattern, instead, shown, flags=re.MULTILINE)
    return shown


def settled_size(console: Path, seconds: float = SETTLE_SECONDS) -> int:
    """Size of a file once nobody has written to it for some seconds."""
    sys.stdout.flush()
    sys.stderr.flush()
    deadline = time.monotonic() + SETTLE_DEADLINE
    size, since = console.stat().st_size, time.monotonic()
    while time.monotonic() - since < seconds and time.monotonic() < deadline:
        time.sleep(0.02)
        if (now := console.stat().st_size) != size:
            size, since = now, time.monotonic()
    return size


def make(one: Mistake, table: Table, console: Path) -> Outcome:
    """Make one mistake, and print its error as Python does."""
    from tfos_ml.errors import TfosMlError, TfosMlWarning

    jobs, begin = table.jobs(), settled_size(console)
    seen: list[BaseException | Warning] = []
    show = warnings.showwarning

    def note_and_show(message: Any, *where: Any) -> None:
        if issubclass(where[0], TfosMlWarning):
            seen.append(message)
        show(message, *where)

    warnings.showwarning = note_and_show
    try:
        one.make(table)
    except BaseException as error:
        seen.append(error)
        own = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(type(error), error, own)
    finally:
        warnings.showwarning = show
    end = settled_size(console, SETTLE_SECONDS_OF_JOB if table.jobs() > jobs else SETTLE_SECONDS)
    text = console.read_bytes()[begin:end].decode(errors="replace")
    told = seen[-1] if seen else None
    name = f"{type(told).__module__}.{type(told).__qualname__}"
    is_typed = isinstance(told, TfosMlError | TfosMlWarning)
    return Outcome(
        one.make.__name__, one.title, name, is_typed, one.is_known_before, table.jobs() - jobs, as_seen(text)
    )


def drive(only: str, console: Path, answer: Path) -> None:
    """In the driver process: make all mistakes."""
    table = Table()
    import keras  # noqa: F401  (as users have, before they make a model)

    keras_model()(__import__("numpy").zeros((1, 4)))
    chosen = [one for one in MISTAKES if re.search(only, one.make.__name__)]
    outcomes = [make(one, table, console) for one in chosen]
    table.spark.stop()
    os.rmdir(table.directory)
    answer.write_text(json.dumps([asdict(outcome) for outcome in outcomes]))


def outcomes_of(only: str = "") -> list[Outcome]:
    """Make the mistakes whose names match a pattern, in a new process, and return their outcomes."""
    with tempfile.TemporaryDirectory() as directory:
        console, answer = Path(directory) / "console", Path(directory) / "answer"
        with open(console, "wb") as file:
            command = [sys.executable, __file__, "--only", only, "--console", str(console), "--answer", str(answer)]
            path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
            environment = {"PYSPARK_PYTHON": sys.executable, **os.environ, "PYTHONPATH": path}
            done = subprocess.run(command, stdout=file, stderr=file, env=environment, timeout=TIMEOUT)
        if done.returncode:
            raise RuntimeError(console.read_text(errors="replace")[-5000:])
        return [Outcome(**outcome) for outcome in json.loads(answer.read_text())]


def page(outcomes: list[Outcome]) -> str:
    """The page, in reStructuredText."""
    made = {one.make.__name__: one for one in MISTAKES}
    parts = [BEGINNING.format(number=len(outcomes))]
    rows = [(o.title, f"``{o.error.rsplit('.', 1)[-1]}``", str(o.jobs)) for o in outcomes]
    head = ("Mistake", "Error or warning", "Spark jobs")
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(3)]
    rule = "  ".join("=" * width for width in widths)
    table = [rule, _row(head, widths), rule, *(_row(row, widths) for row in rows), rule]
    parts.append("\n".join(table) + "\n")
    for outcome in outcomes:
        source = inspect.getsource(made[outcome.name].make).split("\n", 2)[2]  # without decorator and head
        code = textwrap.indent(textwrap.dedent(source).strip(), "    ")
        text = textwrap.indent(message(outcome), "    ")
        parts.append(
            f"{outcome.title}\n{'-' * len(outcome.title)}\n\n.. code-block:: python\n\n{code}\n\n::\n\n{text}\n"
        )
    return "\n".join(parts)


def message(outcome: Outcome) -> str:
    """The error or warning as the console shows it, in short lines and without the traceback above it."""
    lines = outcome.console.splitlines()
    name = outcome.error.rsplit(".", 1)[-1]
    (*_, first) = (number for number, line in enumerate(lines) if f"{name}: " in line)
    begun = lines[first].index(name)
    rest = [] if name.endswith("Warning") else lines[first + 1 :]  # below a warning is the line that it is about
    wrapped = (textwrap.wrap(line, 112, break_long_words=False) or [""] for line in [lines[first][begun:], *rest])
    return "\n".join(line for lines in wrapped for line in lines)


def _row(cells: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def problems(outcome: Outcome) -> list[str]:
    """Problems with the outcome of a mistake."""
    found = []
    if not outcome.is_typed:
        found.append(f"{outcome.error} is none of tfos_ml's")
    if outcome.lines > LINES:
        found.append(f"{outcome.lines} lines, at most {LINES} expected")
    if outcome.is_known_before and outcome.jobs:
        found.append(f"{outcome.jobs} jobs were started, though the driver could have known")
    if re.search(r"<tfos_ml:|^\s*at \S+\(\S+\.(java|scala):\d+\)|Py4JJavaError", outcome.console, re.MULTILINE):
        found.append("Java's lines, or a failure's encoded form")
    return found


def main() -> int:
    """Write the page, and return the number of problems."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="pattern of names")
    parser.add_argument("--output", default=str(ROOT / "docs" / "reference" / "mistakes.rst"))
    parser.add_argument("--console", help=argparse.SUPPRESS)
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answer:
        drive(arguments.only, Path(arguments.console), Path(arguments.answer))
        return 0
    outcomes = outcomes_of(arguments.only)
    Path(arguments.output).write_text(page(outcomes))
    failed = 0
    for outcome in outcomes:
        for problem in problems(outcome):
            failed += 1
            sys.stderr.write(f"{outcome.name}: {problem}\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
