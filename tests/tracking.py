"""MLflow tracking servers for tests: SQLite, and a real server over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import requests
from ports import free_ports


@contextmanager
def logged(uri: str, experiment: str, **options: Any) -> Iterator[Any]:
    """Fits are logged to an experiment of a store; yields a client of it."""
    import mlflow

    import tfos_ml.mlflow

    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    if uri.startswith("sqlite:"):  # artifacts would go to the working directory
        mlflow.create_experiment(experiment, artifact_location=f"{uri.removeprefix('sqlite:///')}-artifacts")
    mlflow.set_experiment(experiment)
    tfos_ml.mlflow.autolog(**options)
    try:
        yield mlflow.MlflowClient()
    finally:
        tfos_ml.mlflow.autolog(disable=True)
        while mlflow.active_run():
            mlflow.end_run()
        mlflow.set_tracking_uri(None)
        mlflow.set_registry_uri(None)
        mlflow.tracking.fluent._active_experiment_id = None  # or it would be looked for in the next store
        for name in ("MLFLOW_EXPERIMENT_ID", "MLFLOW_REGISTRY_URI"):  # MLflow leaves them to child processes
            os.environ.pop(name, None)


def runs_of(client: Any, experiment: str) -> list[Any]:
    """The runs of an experiment, the oldest first."""
    found = client.get_experiment_by_name(experiment)
    return list(client.search_runs([found.experiment_id], order_by=["attributes.start_time ASC"]))


def series(client: Any, run: Any, metric: str) -> list[tuple[int, float]]:
    """Step and value of each point of a metric."""
    return [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, metric)]


def models_of(client: Any, run: Any) -> dict[str, str]:
    """The URIs of the models of a run, by name: logged models, or with MLflow 2 artifacts."""
    if not hasattr(client, "get_logged_model"):
        artifacts = json.loads(run.data.tags.get("mlflow.log-model.history", "[]"))
        return {one["artifact_path"]: f"runs:/{run.info.run_id}/{one['artifact_path']}" for one in artifacts}
    outputs = client.get_run(run.info.run_id).outputs  # which a search for runs leaves out with MLflow 3.0
    models = [client.get_logged_model(output.model_id) for output in (outputs.model_outputs if outputs else ())]
    return {model.name: model.model_uri for model in models}


class Server:
    """``mlflow server`` in a process of its own, with artifacts through it."""

    def __init__(self, directory: Path):
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        store = [f"--backend-store-uri=sqlite:///{directory}/server.db", f"--artifacts-destination={directory}/files"]
        address = ["--host=127.0.0.1", f"--port={self.port}", "--workers=1"]
        self._log = open(directory / "server.log", "ab")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *store, *address],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={
                **os.environ,
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                "MLFLOW_SERVER_ALLOWED_HOSTS": "127.0.0.*",
            },
        )

    def wait(self) -> Server:
        """Return once it answers."""
        deadline = time.monotonic() + 90
        while True:
            try:
                requests.get(f"{self.uri}/health", timeout=5).raise_for_status()
                return self
            except requests.RequestException:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.2)

    def kill(self) -> None:
        """End it and its workers at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        self._log.close()


def free_port() -> int:
    return int(free_ports(1)[0])
