"""The promise of KerasEstimator: any number of workers ends with the weights of plain Keras."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from keras_worker import BATCH, CASES, EPOCHS, make

WORKER = Path(__file__).parent.parent / "keras_worker.py"
OF_ONE = ["sgd_momentum_clipped", "own_train_step", "two_outputs", "shuffle"]
OF_THREE = [
    "sgd_momentum_clipped",
    "adam",
    "loss_mean_with_sample_weight",
    "lstm_masked_steps",
    "ragged_input",
    "convolution_idle_worker",
    "shuffle",
]
TRAINED = {1: OF_ONE, 2: list(CASES), 3: OF_THREE}


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [str(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    return ports


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Weights and logs of all cases, trained by 1, 2 and 3 worker processes."""
    out = tmp_path_factory.mktemp("trained")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}
    for size, cases in TRAINED.items():
        ports = free_ports(size)
        commands = [[sys.executable, str(WORKER), str(out), str(rank), ",".join(ports), *cases] for rank in range(size)]
        logs = [open(out / f"log-{size}-{rank}", "w") for rank in range(size)]  # noqa: SIM115
        workers = [
            subprocess.Popen(c, stdout=log, stderr=subprocess.STDOUT, env=environment)
            for c, log in zip(commands, logs, strict=True)
        ]
        try:
            codes = [w.wait(300) for w in workers]
        finally:
            for worker, log in zip(workers, logs, strict=True):
                worker.kill()
                worker.wait()
                log.close()
        assert not any(codes), (out / f"log-{size}-{np.argmax(codes)}").read_text()[-3000:]
    return out


def rows_of(values, chosen):
    return {k: v[chosen] for k, v in values.items()} if isinstance(values, dict) else values[chosen]


@pytest.fixture(scope="module")
def reference():
    """Plain Keras on the same rows in the same order."""
    import tensorflow as tf

    def train(case):
        data, model = make(case)
        validates = np.zeros(len(data["x"]), bool) if data["val"] is None else data["val"]

        def part(chosen):
            weight = () if data["w"] is None else (data["w"][chosen],)
            x = data["x"][chosen]
            if case == "ragged_input":
                x = tf.RaggedTensor.from_tensor(x, lengths=data["lengths"][chosen])
            return (x, rows_of(data["y"], chosen), *weight)

        x, y, *w = part(~validates)
        history = model.fit(
            x,
            y,
            sample_weight=w[0] if w else None,
            validation_data=part(validates) if validates.any() else None,
            epochs=EPOCHS,
            batch_size=BATCH,
            shuffle=False,
            verbose=0,
        ).history
        return model.get_weights(), history

    return train


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", [c for c in CASES if c != "shuffle"])
def test_every_number_of_workers_ends_like_plain_keras(trained, reference, case):
    weights, history = reference(case)
    for size in [size for size, cases in TRAINED.items() if case in cases]:
        for rank in range(size):
            with np.load(trained / f"{case}-{size}-{rank}.npz") as file:
                own = [file[name] for name in file.files]
            worst = max(float(np.abs(a - b).max()) for a, b in zip(own, weights, strict=True))
            assert worst < 1e-5, f"{size} workers, rank {rank}: {worst}"
        logs = json.loads((trained / f"{case}-{size}.json").read_text())
        assert set(logs[0]) == set(history)
        for name, values in history.items():
            np.testing.assert_allclose(
                [log[name] for log in logs], values, rtol=1e-5, atol=1e-5, err_msg=f"{size} {name}"
            )


def test_a_seeded_shuffle_is_the_same_for_every_number_of_workers(trained, reference):
    in_order, _ = reference("shuffle")
    with np.load(trained / "shuffle-1-0.npz") as file:
        alone = [file[name] for name in file.files]
    assert max(float(np.abs(a - b).max()) for a, b in zip(alone, in_order, strict=True)) > 1e-4
    for size in (2, 3):
        with np.load(trained / f"shuffle-{size}-0.npz") as file:
            own = [file[name] for name in file.files]
        assert max(float(np.abs(a - b).max()) for a, b in zip(own, alone, strict=True)) < 1e-5
