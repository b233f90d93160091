"""What is said where packages of extras are missing, in processes that cannot import them.

``test_wheel.py`` imports the package where there are none.
"""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from tfos_ml import errors

for program in sys.argv[2:]:
    try:
        exec(program)
    except errors.MissingPackageError as error:
        print(error.name, error)
"""


def run(hidden, *programs):
    """What programs print that catch the error; it fails with any other."""
    command = [sys.executable, "-c", PROGRAM, hidden, *programs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_missing_package_is_named_with_the_line_that_installs_it():
    said = run(
        "mlflow optuna tensorflow",
        "import tfos_ml.mlflow as m; m.autolog()",
        "from tfos_ml.tuning import OptunaSearch; OptunaSearch(metric='loss')._study()",
        "import tfos_ml.inference.saved_model as m; m.load('/nowhere', 'serving_default', 'serve')",
    )
    what = {"mlflow": "tfos_ml.mlflow.autolog", "optuna": "OptunaSearch", "tensorflow": "Scoring in this process"}
    for line, package in zip(said, what, strict=True):
        assert line.startswith(f"{package} {what[package]} needs {package}, which is not installed here. Run: pip")
        assert f"'tfos_ml[{package}]'" in line


def test_serving_the_doctor_and_nodes_import_no_pyspark():
    """Red before for all but a node's process. What ruff's banned-module-level-imports says of each module, for all."""
    program = "import tfos_ml.mlflow.pyfunc, tfos_ml.doctor.command, tfos_ml.tfrecord.functions, tfos_ml.worker.main"
    (said,) = run("pyspark", program, "from tfos_ml import TFEstimator")
    assert said.startswith("pyspark tfos_ml.TFEstimator needs pyspark, which is not installed here. Run: pip install")
