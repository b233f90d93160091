"""Our TFCluster beside TensorFlowOnSpark's: feed, inference, start and shutdown, round by round.

Each side runs ``cluster_workload`` in a process and session of its own, in turn. TensorFlowOnSpark gets an
environment of its own, made on first use (about 3 GB).

    python benchmarks/cluster.py [--rounds 3] [--widths 784 10]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import peers
from cluster_workload import ROWS, measure
from executors import session

HERE = Path(__file__).parent
OUR_ROWS = {784: 8, 10: 40}  # times as many rows as the peer gets, so that the timed span is as long
FIGURES = ("rows_per_second", "start_seconds", "shutdown_seconds", "shutdown_seconds_after_map_fun")
Figures = dict[str, dict[str, float]]


def ours(width: int, seed: int) -> None:
    """Measure our side in this process, and print one line of JSON."""
    from tfos_ml import InputMode, TFCluster

    spark = session()
    rows = [ROWS[width] * OUR_ROWS[width]]
    figures = measure(spark.sparkContext, TFCluster, InputMode.SPARK, [width], rows, seed)
    spark.stop()
    print(json.dumps({"clusters": figures}))


def figures_of(command: list[str]) -> Figures:
    """What a side printed, by mode."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True, cwd=HERE)
    clusters: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["clusters"]
    return {cluster["mode"]: {name: cluster[name] for name in FIGURES} for cluster in clusters}


def show(width: int, rounds: list[tuple[Figures, Figures]]) -> None:
    """Medians of both sides, and of their ratio with its range."""
    print(f"\n{width} floats a row, {len(rounds)} rounds, medians: ours, TensorFlowOnSpark's, ratio (range)")
    for mode in rounds[0][0]:
        for name in FIGURES:
            pairs = [(our[mode][name], their[mode][name]) for our, their in rounds]
            ratios = sorted(our / their for our, their in pairs)
            our, their = (statistics.median(side) for side in zip(*pairs, strict=True))
            digits = 0 if name == "rows_per_second" else 2
            line = f"  {mode:10} {name:31} {our:>12,.{digits}f} {their:>12,.{digits}f}"
            print(f"{line} {statistics.median(ratios):>8.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})", flush=True)


def main() -> None:
    """Measure each width."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--widths", type=int, nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--ours", type=int, nargs=2, metavar=("WIDTH", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ours:
        ours(*arguments.ours)
        return
    peer = str(peers.python_of("tensorflowonspark"))
    for width in arguments.widths:
        rounds = []
        for seed in range(arguments.rounds):
            our = figures_of([sys.executable, __file__, "--ours", str(width), str(seed)])
            script = str(HERE / "tensorflowonspark_peer.py")
            their = figures_of([peer, script, "--widths", str(width), "--seed", str(seed)])
            rounds.append((our, their))
        show(width, rounds)


if __name__ == "__main__":
    main()
