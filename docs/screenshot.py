"""Take docs/mlflow-run.png: the curves of a run in the MLflow UI, by a headless Chromium.

Starts an ``mlflow server``, fits the digits of examples/digits.py under autolog, and looks at the
run's page. Needs Chromium (Debian: ``apt-get install chromium``) and ``pip install -e .[demo,docs]``.

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
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
EXAMPLES = str(ROOT / "examples")
sys.path.insert(0, EXAMPLES)
os.environ["PYTHONPATH"] = EXAMPLES  # of the nodes
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
    """A picture of a run's page, once all of its curves are drawn."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit(f"None of {BROWSERS} is installed. On Debian: apt-get install chromium")
    options = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=browser, args=options, chromium_sandbox=os.geteuid() != 0, timeout=60_000
        )
        page = chromium.new_page(viewport={"width": 1500, "height": 980})
        page.goto(url)
        plots = page.locator(".js-plotly-plot .scatterlayer .trace")
        plots.first.wait_for(timeout=60_000)
        page.get_by_role("button", name="Close", exact=True).click()  # of the assistant
        page.get_by_text("Model training", exact=True).click()
        page.get_by_text("matching run").wait_for(timeout=60_000)
        page.goto(url)
        for number in range(4):
            page.locator(".js-plotly-plot").nth(number).locator(".trace").first.wait_for(timeout=60_000)
        page.mouse.move(0, 0)
        page.screenshot(path=output)
        chromium.close()


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
