"""What would be published: a wheel and a source distribution, as an index and a stranger's environment see them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The two files, of a copy of what git knows."""
    pytest.importorskip("build")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("docs", "examples", "tests", "tfos_ml", "tools"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [*ROOT.glob("*.*"), ROOT / "LICENSE", ROOT / "Makefile"]:
        if path.is_file():
            shutil.copy(path, source)
    run(sys.executable, "-m", "build", "--outdir", out, source)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def test_an_index_takes_both(built):
    assert run(sys.executable, "-m", "twine", "check", "--strict", *built).count("PASSED") == 2


def test_the_wheel_holds_the_package_alone_and_the_source_distribution_all_that_tests_need(built):
    with zipfile.ZipFile(built[0]) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"tfos_ml"}
    assert "tfos_ml/py.typed" in names
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tests/conftest.py", "docs/index.rst", "examples/digits.py", "CHANGELOG.rst", "Makefile"} <= names
    assert not [name for name in names if name.endswith(".pyc")]


def test_extras_are_extras_and_links_of_the_page_lead_somewhere(built):
    with zipfile.ZipFile(built[0]) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(name))
    required = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert not [line for line in required if line.startswith(("pyspark", "tensorflow", "keras", "mlflow", "requests"))]
    assert {"spark", "tensorflow", "mlflow", "all"} <= set(metadata.get_all("Provides-Extra"))
    text = metadata.get_payload()
    assert "<docs/" not in text
    assert "image:: docs/" not in text
    assert f"{metadata['Home-page']}/blob/main/docs/howto/migrate_tensorflowonspark.rst" in text


def test_an_empty_environment_can_import_it(built, tmp_path):
    venv.create(tmp_path / "empty")
    (site,) = (tmp_path / "empty" / "lib").glob("python*/site-packages")
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, built[0])
    program = "import tfos_ml, tfos_ml.mlflow, os; print(os.path.dirname(tfos_ml.__file__))"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [str(tmp_path / "empty" / "bin" / "python"), "-c", program]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == str(site / "tfos_ml")
