"""Take docs/mlflow-run.png: the curves of a run in the MLflow UI, by a headless Chromium.

Starts an ``mlflow server``, fits the digits of examples/digits.py under autolog, and looks at the
run's page. Needs Chromium (Debian: ``apt-get install chromium``) and ``pip install -e .[demo,docs]``.

    python docs/screenshot.py [--output docs/mlflow-run.png]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
EXAMPLES = str(ROOT / "examples")
sys.path[:0] = [EXAMPLES, str(ROOT / "tests")]
os.environ["PYTHONPATH"] = EXAMPLES  # of the nodes
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from tracking import Server  # noqa: E402  (of the tests)

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


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
    with tempfile.TemporaryDirectory() as directory:
        server = Server(Path(directory)).wait()
        try:
            photograph(server.uri + fit_digits(server.uri), output)
        finally:
            server.kill()
    sys.stdout.write(f"{output}\n")


if __name__ == "__main__":
    main()
