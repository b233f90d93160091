"""Take docs/mlflow-run.png: the curves of a run in the MLflow UI, by a headless Chromium.

Starts an ``mlflow server``, fits the digits of examples/digits.py under autolog, and looks at the
run's page. Needs Chromium (Debian: ``apt-get install chromium``).

    python docs/screenshot.py [--output docs/mlflow-run.png]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import requests

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@contextlib.contextmanager
def mlflow_server(directory: str) -> Iterator[str]:
    """The address of a tracking server that answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = [f"--backend-store-uri=sqlite:///{directory}/runs.db", f"--artifacts-destination={directory}/files"]
    command = [sys.executable, "-m", "mlflow", "server", *store, "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen([*command, "--workers", "1"], cwd=directory, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with contextlib.suppress(requests.RequestException):
                requests.get(f"{address}/health", timeout=5).raise_for_status()
                break
            time.sleep(0.5)
        yield address
    finally:
        os.killpg(server.pid, 9)
        server.wait()


def fit_digits(address: str) -> str:
    """Fit under autolog; returns the path of the run's page."""
    import digits
    import mlflow

    import tfos_ml.mlflow

    mlflow.set_tracking_uri(address)
    mlflow.set_experiment("digits")
    tfos_ml.mlflow.autolog()
    spark = digits.start_spark()
    training, _ = digits.load_data(spark)
    with mlflow.start_run(run_name="digits, 2 workers") as run:
        digits.make_pipeline([name for name in training.columns if name != "label"]).fit(training)
    tfos_ml.mlflow.autolog(disable=True)
    spark.stop()
    return f"/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}/model-metrics"


def photograph(url: str, output: Path) -> None:
    """A picture of a page, once its scripts have come to rest."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit(f"None of {BROWSERS} is installed. On Debian: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
        options += ["--no-sandbox"] if os.geteuid() == 0 else []
        options += [f"--user-data-dir={profile}", "--window-size=1400,1000", "--virtual-time-budget=30000"]
        subprocess.run([browser, *options, f"--screenshot={output.absolute()}", url], check=True, timeout=180)


def main() -> None:
    """Serve, fit, photograph."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "mlflow-run.png")
    output = parser.parse_args().output
    with tempfile.TemporaryDirectory() as directory, mlflow_server(directory) as address:
        photograph(address + fit_digits(address), output)
    sys.stdout.write(f"{output}\n")


if __name__ == "__main__":
    main()
