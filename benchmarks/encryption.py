"""What encryption costs: KerasEstimator with two workers where Spark encrypts its traffic, and where it does not.

Networks with short and long steps train on ``local-cluster[2,1,4096]``, each worker a process of one thread, in
sessions with and without ``spark.network.crypto.enabled``, in turns. Without it, messages between workers are
authenticated, but not encrypted.

    python benchmarks/encryption.py [--rounds 3] [--models mlp cnn long]
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
from collections.abc import Iterator

from executors import session
from pyspark.sql import SparkSession
from training import BATCH, ROWS, compare, frame, rate_of_fit

AIM = 0.95


@contextlib.contextmanager
def new_session(encrypts: bool) -> Iterator[SparkSession]:
    """A session of its own, stopped at the end."""
    settings = {"spark.network.crypto.enabled": str(encrypts).lower(), "spark.authenticate": str(encrypts).lower()}
    if encrypts:
        settings["spark.authenticate.secret"] = secrets.token_hex()
    spark = session(settings=settings)
    try:
        yield spark
    finally:
        spark.stop()


def rate(name: str, encrypts: bool) -> float:
    """Rows a second of a fit in a session of its own."""
    with new_session(encrypts) as spark:
        return rate_of_fit(frame(spark, ROWS[name]), name, 2)


def main() -> None:
    """Print rates and ratios for each network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=list(ROWS), choices=list(ROWS))
    arguments = parser.parse_args()
    for name in arguments.models:
        compare(
            f"{name}, batch {BATCH}, {ROWS[name]:,} rows an epoch, {arguments.rounds} rounds, medians:",
            {"plain": lambda name=name: rate(name, False), "encrypted": lambda name=name: rate(name, True)},
            {"encrypted": [("plain", AIM)]},
            arguments.rounds,
        )


if __name__ == "__main__":
    main()
