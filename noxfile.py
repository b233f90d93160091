"""The matrix: the wheel in environments of the versions that setup.cfg allows, and the tests that cross every layer.

``make test-matrix`` runs all of it; ``nox -s corner-oldest`` and the like one corner. Pythons that are not there are
skipped, and told. Results go to docs/matrix, of which docs/compatibility.py makes a page.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False

HERE = Path(__file__).parent
TESTING = [
    "hypothesis",
    "import-linter",
    "nbformat",
    "psutil>=6",
    "pytest>=8",
    "pytest-timeout",
    "pytest-xdist",
    "tensorboard",
]
TESTED_BESIDE = ["scikit-learn"]
OLDEST = [  # the lowest of all that setup.cfg names
    "cloudpickle==3.0.*",
    "cryptography==43.*",
    "google-crc32c==1.5.*",
    "keras==3.7.*",
    "mlflow==2.21.*",
    "msgspec==0.19.*",
    "numpy==1.26.*",
    "pandas==2.2.*",
    "protobuf==4.25.*",
    "pyarrow==18.*",
    "pyspark==3.5.*",
    "requests==2.31.*",
    "sqlalchemy<2.1",  # MLflow before 3.9 opens a store with no newer one
    "tensorflow-cpu==2.18.*",
    "tqdm==4.66.*",
]
SPARK_4_0 = [
    "mlflow",
    "pandas==2.2.*",
    "pyspark[connect]==4.0.*",
    "setuptools<81",  # of which TensorBoard 2.20 needs pkg_resources
    "tensorflow-cpu==2.20.*",
]
DEBIAN = ["mlflow", "pandas<3", "pyspark[connect]==4.1.*", "tensorflow-cpu"]
NEWEST = ["mlflow", "pandas>=3", "pyspark[connect]", "tensorflow-cpu"]
CORNERS = {
    "spark-3.5": ("3.10", OLDEST),
    "spark-4.0": ("3.12", SPARK_4_0),
    "debian-12": ("/usr/bin/python3.11", DEBIAN),  # 3.11.2, whose tarfile knows no filters
    "newest": ("3.13", NEWEST),
}


# What platforms have before anybody installs anything, of what tfos_ml, TensorFlow and MLflow need.
PLATFORMS = json.loads((HERE / "docs" / "platforms.json").read_text())
CROSSING = [  # the tests of a platform, if there are no others: they cross MLflow, Spark ML and TensorFlow
    "-m",
    "corner and not soak",
    "tests/e2e/test_mlflow.py",
    "tests/e2e/test_persistence.py",
    "tests/e2e/test_transform.py",
    "tests/e2e/test_keras.py",
    "tests/unit/test_mlflow_flavor.py",
]


def interpreter(version: str) -> str:
    """Where pyenv keeps a Python, which it may not have on the search path; else what was given."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(kept[-1]) if kept else version


def wheel(session: nox.Session) -> str:
    """The package as it would be published."""
    built = Path(session.create_tmp()) / "wheel"
    shutil.rmtree(built, ignore_errors=True)
    session.run_install("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(built), str(HERE))
    return str(next(built.glob("*.whl")))


def install(session: nox.Session, *packages: str) -> None:
    """Install the wheel, what is given, and what tests need; and see that nothing contradicts anything."""
    built = wheel(session)
    session.install(built, *packages, *TESTING, *TESTED_BESIDE)
    session.install("--force-reinstall", "--no-deps", built)  # an environment that is used again has an older one
    session.run_install("python", "-m", "pip", "check")


def run_tests(session: nox.Session, name: str, *arguments: str, **environment: str) -> None:
    """Run what is marked ``corner``, or what was asked for, and write down how it went."""
    chosen = session.posargs or arguments or ["-m", "corner and not soak", "tests/e2e", "tests/unit"]
    chosen = [str(HERE / part) if (HERE / part.partition("::")[0]).exists() else part for part in chosen]
    variables = {
        "PYTHONPATH": str(HERE / "tests"),
        "PYTHONDONTWRITEBYTECODE": "",
        "TFOS_ML_CORNER": str(HERE / "docs" / "matrix" / f"{name}.json"),
        **environment,
    }
    # Elsewhere: Spark's daemons, and programs that tests start, would import the package from here.
    session.chdir(session.create_tmp())
    settings = ["-c", str(HERE / "pyproject.toml"), "--rootdir", str(HERE)]
    session.run("pytest", "-p", "corner_report", "-n", "3", "--dist", "loadfile", *settings, *chosen, env=variables)


def corner(python: str, name: str, packages: list[str]) -> None:
    """Define the session of a corner."""

    @nox.session(python=interpreter(python), name=f"corner-{name}", tags=["corners"])
    def session(session: nox.Session) -> None:
        install(session, *packages)
        run_tests(session, name)


for _name, (_python, _packages) in CORNERS.items():
    corner(_python, _name, _packages)


def platform(name: str, python: str, preinstalled: dict[str, str], installed: list[str]) -> None:
    """Define the session of a platform: its packages, and then what a user installs, who keeps its MLflow."""

    @nox.session(python=interpreter(python), name=f"platform-{name}", tags=["platforms"])
    def session(session: nox.Session) -> None:
        session.install("--upgrade", "pip")
        session.install(*[f"{package}=={version}" for package, version in preinstalled.items()])
        install(session, *installed)
        run_tests(session, name, *CROSSING)


for _name, _platform in PLATFORMS.items():
    platform(_name, _platform["python"], _platform["packages"], _platform["installed"])


@nox.session(python=interpreter("3.13"))
def connect(session: nox.Session) -> None:
    """The same tests in sessions of Spark Connect, whose server is another process."""
    install(session, *NEWEST)
    run_tests(session, "connect", TFOS_ML_TEST_CONNECT="1")


@nox.session(python=interpreter("3.13"))
def connect_client(session: nox.Session) -> None:
    """A client without Java, TensorFlow and MLflow, of a server with all of them."""
    install(session, *NEWEST)
    client = Path(session.create_tmp()).resolve() / "client"
    session.run("python", "-m", "venv", "--clear", str(client))
    python = str(client / "bin" / "python")
    session.run(python, "-m", "pip", "install", "--quiet", wheel(session), "pyspark-client", external=True)
    session.run(python, "-m", "pip", "check", external=True)
    run_tests(session, "connect-client", "tests/e2e/test_connect_client.py", TFOS_ML_CLIENT_PYTHON=python)


@nox.session(python=interpreter("3.13"))
def kerashub(session: nox.Session) -> None:
    """Programs on KerasHub, whose TensorFlow Text takes one release of TensorFlow only."""
    install(session, "keras-hub", "mlflow", "pyspark", "tensorflow")
    chosen = ["-m", "chaos or not chaos", "-k", "kerashub", "tests/unit/test_exactness.py"]
    chosen += ["tests/e2e/test_embeddings.py", "tests/e2e/test_example_programs.py"]
    report = Path(session.create_tmp()).resolve() / "kerashub.json"
    run_tests(session, "kerashub", *chosen, TFOS_ML_CORNER=str(report))


@nox.session(python=interpreter("3.11"))
@nox.parametrize("spark", ["pyspark==4.0.1", "pyspark-client==4.0.1"])
def beside(session: nox.Session, spark: str) -> None:
    """Installing the wheel changes none of the packages that are there."""
    session.install(spark, "pandas==2.2.*", "pyarrow==18.*", "numpy<2.1")
    before = _installed(session)
    session.install(wheel(session))
    after = _installed(session)
    changed = {name: version for name, version in before.items() if after.get(name) != version}
    if changed:
        session.error(f"the wheel has changed {changed}")


def _installed(session: nox.Session) -> dict[str, str]:
    listed = session.run("python", "-m", "pip", "list", "--format", "json", silent=True)
    return {entry["name"]: entry["version"] for entry in json.loads(str(listed))}
