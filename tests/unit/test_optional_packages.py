"""What is said where a package of an extra is missing; each in a process that cannot import it."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
from tfos_ml import errors
"""
USES = {
    "pyspark": ("from tfos_ml import TFEstimator", "tfos_ml.TFEstimator needs pyspark", "tfos_ml[spark]"),
    "mlflow": ("import tfos_ml.mlflow as m; m.autolog()", "tfos_ml.mlflow.autolog needs mlflow", "tfos_ml[mlflow]"),
    "optuna": (
        "from tfos_ml.tuning import OptunaSearch; OptunaSearch(metric='loss')._study()",
        "OptunaSearch needs optuna",
        "tfos_ml[optuna]",
    ),
    "tensorflow": (  # which stages import only when they need it
        "from tfos_ml import TFEstimator, TFModel; import tfos_ml.inference.saved_model as m; "
        "m.load('/nowhere', 'serving_default', 'serve')",
        "Scoring in this process needs tensorflow",
        "tfos_ml[tensorflow]",
    ),
}


def run(package, program):
    """What a program prints that catches the error; it fails with any other."""
    lines = f"try:\n    {program}\nexcept errors.MissingPackageError as error:\n    print(error.name, error)"
    command = [sys.executable, "-c", BEGIN.format(package=package) + lines]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize("package", USES)
def test_a_missing_package_is_named_with_the_line_that_installs_it(package):
    program, beginning, extra = USES[package]
    said = run(package, program)
    assert said.startswith(f"{package} {beginning}, which is not installed here. Run: pip install '{extra}'")


def test_an_import_of_the_package_needs_none_of_them():
    done = subprocess.run(
        [sys.executable, "-c", "import sys, tfos_ml, tfos_ml.mlflow; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not {"pyspark", "tensorflow", "keras", "mlflow", "requests", "matplotlib"} & set(done.stdout.split())


def test_a_missing_package_of_the_users_own_is_left_as_it_is():
    from tfos_ml.common.optional_packages import needed_by

    with pytest.raises(ModuleNotFoundError, match="No module named 'not_there'"), needed_by("It"):
        import not_there  # noqa: F401


def test_serving_the_doctor_and_nodes_import_no_pyspark():
    """Red before for all but a node's process. What ruff's banned-module-level-imports says of each module, for all."""
    program = "import tfos_ml.mlflow.pyfunc, tfos_ml.doctor.command, tfos_ml.tfrecord.functions, tfos_ml.worker.main"
    command = [sys.executable, "-c", BEGIN.format(package="pyspark") + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
