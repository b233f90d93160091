"""Rows a second and memory of embedding texts and images: a transform, a loop without Spark, ``predict_batch_udf``.

The models are those of the page docs/howto/embeddings.rst: a BERT of KerasHub as large as MiniLM (6 layers, width 384),
and MobileNetV2, both with random weights. The texts are the first paragraphs of docstrings. Eight Python workers of
one executor score at once:

- ``transform``: the executor's one scoring process has the model.
- ``predict_batch_udf``: each Python worker has a model, and calls it with `BATCH` rows.
- ``loop``: no Spark, one process with as many threads, and as many rows in a call as ``transform`` has.
- ``loop, as written``: the same with `BATCH` rows, padded to the longest of them.

For each, a process or session of its own runs once, which loads the model, and then once for the rate. Memory is the
most that all Python workers, the fork server and the scoring process have together (PSS) in the first run and at the
end of the second, or the resident size of the loop.

    python benchmarks/embeddings.py [--rounds 3] [--rows 2000] [--images 400] [--only texts images]
        [--contenders loop transform ...]
"""

from __future__ import annotations

import argparse
import ast
import collections
import importlib.util
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pandas as pd
from executors import session
from peak_memory import Peak, memory
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, FloatType

from tfos_ml import TFModel

WORKERS = 8
BATCH = 32
CONTENDERS = ("loop", "transform", "loop, as written", "predict_batch_udf")
ROWS_OF_A_CALL = {"text": 1024, "content": BATCH}  # of transform, as the page has it
PAGE = Path(__file__).parents[1] / "docs" / "howto" / "embeddings.rst"


def programs() -> list[str]:
    """The programs of the page, in order."""
    found = re.findall(r"^\.\. code-block:: python\n\n((?:    .*\n|\n)+)", PAGE.read_text(), re.MULTILINE)
    return [textwrap.dedent(program) for program in found]


def run_program(program: str, directory: str, **replaced: str) -> None:
    """Run an exporting program of the page in a directory, with other values of some of its names."""
    for name, value in replaced.items():
        program, count = re.subn(rf"\b{name}( ?= ?)[^\s,]+", rf"{name}\g<1>{value}", program, count=1)
        assert count, name
    os.makedirs(directory)
    before = os.getcwd()
    os.chdir(directory)
    exec(compile(program, str(PAGE), "exec"), {})
    os.chdir(before)


def docstrings(rows: int) -> list[str]:
    """First paragraphs of docstrings of Keras and scikit-learn, shuffled; their lengths differ a lot."""
    found = set()
    for library in ("keras", "sklearn"):
        for path in Path(importlib.util.find_spec(library).origin).parent.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    found.add(" ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()))
    texts = sorted(text for text in found if text.count(" ") >= 4)
    np.random.default_rng(0).shuffle(texts)
    return texts[:rows]


def vocabulary(texts: Sequence[str]) -> list[str]:
    """The most frequent words, and all letters."""
    words = collections.Counter(word for text in texts for word in re.findall(r"\w+|[^\w\s]", text.lower()))
    letters = sorted({letter for word in words for letter in word})
    first = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    return list(dict.fromkeys([*first, *(word for word, _ in words.most_common(20_000))]))


def save_text_models(texts: Sequence[str], root: str) -> dict[str, str]:
    """Directories of models that embed as many tokens as fit in a call, and all rows in one call."""
    import keras_hub

    words, preset = vocabulary(texts), f"{root}/preset"
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=len(words), num_layers=6, num_heads=12, hidden_dim=384, intermediate_dim=1536
    )
    backbone.save_to_preset(preset)
    keras_hub.models.BertTokenizer(vocabulary=words, lowercase=True).save_to_preset(preset)
    for name, tokens in (("fits", "4096"), ("padded", "1_000_000_000")):
        run_program(programs()[0], f"{root}/{name}", PRESET=repr(preset), TOKENS=tokens)
    return {name: f"{root}/{name}/text_embedder" for name in ("fits", "padded")}


def save_image_models(root: str) -> dict[str, str]:
    """The directory of the model, which has no variants."""
    run_program(programs()[2], f"{root}/images", weights="None")
    return dict.fromkeys(("fits", "padded"), f"{root}/images/image_embedder")


def images(rows: int) -> list[bytes]:
    """JPEG files of photo-like noise, of 300 to 700 pixels a side; every fourth is a PNG file."""
    import tensorflow as tf

    random = np.random.default_rng(0)
    made = []
    for i in range(rows):
        coarse = random.integers(0, 255, (40, 40, 3))
        pixels = tf.cast(tf.image.resize(coarse, random.integers(300, 700, 2)), tf.uint8)
        made.append((tf.io.encode_jpeg if i % 4 else tf.io.encode_png)(pixels).numpy())
    return made


def frame(rows: Sequence[str | bytes], column: str) -> DataFrame:
    """The rows, in a partition for each Python worker, in a session of its own."""
    df = session(1, WORKERS).createDataFrame(pd.DataFrame({column: rows})).repartition(WORKERS).cache()
    df.count()
    return df


def by_transform(df: DataFrame, path: str, column: str) -> DataFrame:
    """What this project offers."""
    model = TFModel(exportDir=path, featuresCol=column, outputMapping={"embedding": "embedding"})
    return model.setPredictBatchSize(ROWS_OF_A_CALL[column]).transform(df)


def by_predict_batch_udf(df: DataFrame, path: str, column: str) -> DataFrame:
    """What pyspark itself offers."""

    def make():
        import tensorflow as tf

        with_ops = importlib.util.find_spec("tensorflow_text")
        if with_ops:
            import tensorflow_text  # noqa: F401
        model = tf.saved_model.load(path)
        return lambda rows: model.signatures["serving_default"](tf.constant(list(rows)))["embedding"].numpy()

    embed = predict_batch_udf(make, return_type=ArrayType(FloatType()), batch_size=BATCH)
    return df.withColumn("embedding", embed(column))


def in_spark(scored: DataFrame, rows: int) -> tuple[float, float]:
    """Rows a second of the second run, and the peak of memory in MB; measuring memory slows down a run."""

    def run() -> float:
        start = time.perf_counter()
        scored.agg(F.sum(F.col("embedding")[0])).collect()
        return time.perf_counter() - start

    with Peak() as peak:
        run()
    seconds = run()
    peak_bytes = max(peak.bytes, memory())
    scored.sparkSession.stop()
    return rows / seconds, peak_bytes / (1 << 20)


def in_a_loop(rows_file: str, path: str, batch: int) -> tuple[float, float]:
    """The same of a process that runs :func:`loop`."""
    command = [sys.executable, __file__, "--loop", rows_file, path, str(batch)]
    environment = {**os.environ, "TF_NUM_INTRAOP_THREADS": str(WORKERS)}
    printed = subprocess.run(command, stdout=subprocess.PIPE, env=environment, text=True, check=True).stdout
    rate, peak = json.loads(printed.splitlines()[-1])
    return rate, peak


def loop(rows_file: str, path: str, batch: int) -> None:
    """Call the model on all rows; prints rows a second and the peak of memory in MB."""
    import tensorflow as tf

    if importlib.util.find_spec("tensorflow_text"):
        import tensorflow_text  # noqa: F401
    rows = pd.read_parquet(rows_file).iloc[:, 0].tolist()
    embed = tf.saved_model.load(path).signatures["serving_default"]
    for _ in range(2):
        start = time.perf_counter()
        for first in range(0, len(rows), batch):
            embed(tf.constant(rows[first : first + batch]))["embedding"].numpy()
        seconds = time.perf_counter() - start
    print(json.dumps([len(rows) / seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


def measure(
    column: str, rows: Sequence[str | bytes], models: dict[str, str], options: argparse.Namespace, root: str
) -> None:
    """Print the figures of all, in turns."""
    rows_file = f"{root}/{column}.parquet"
    pd.DataFrame({column: rows}).to_parquet(rows_file)
    large = min(ROWS_OF_A_CALL[column], -(-len(rows) // WORKERS))  # no call has rows of two partitions
    contenders = {
        "loop": lambda: in_a_loop(rows_file, models["fits"], large),
        "transform": lambda: in_spark(by_transform(frame(rows, column), models["fits"], column), len(rows)),
        "loop, as written": lambda: in_a_loop(rows_file, models["padded"], BATCH),
        "predict_batch_udf": lambda: in_spark(
            by_predict_batch_udf(frame(rows, column), models["padded"], column), len(rows)
        ),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in options.contenders}
    for _ in range(options.rounds):
        for name in found:
            found[name].append(contenders[name]())
            print(f"  {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    print(f"{column}: {len(rows):,} rows, medians of {options.rounds}: rows/s (range), beside the first, peak MB")
    base = statistics.median(rate for rate, _ in found[options.contenders[0]])
    for name, figures in found.items():
        rates, peaks = zip(*figures, strict=True)
        middle = statistics.median(rates)
        spread = f"({min(rates):.1f} to {max(rates):.1f})"
        print(f"  {name:18} {middle:7.1f} {spread:18} {middle / base:5.2f} {max(peaks):8,.0f}", flush=True)


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--only", nargs="+", default=["texts", "images"], choices=["texts", "images"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        if "texts" in options.only:
            texts = docstrings(options.rows)
            measure("text", texts, save_text_models(texts, root), options, root)
        if "images" in options.only:
            measure("content", images(options.images), save_image_models(root), options, root)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--loop"]:
        loop(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
