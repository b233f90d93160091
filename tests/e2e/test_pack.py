"""``python -m tfos_ml pack``, as users run it, of few small packages; tests/cluster/test_packed.py packs TensorFlow."""

from __future__ import annotations

import io
import os
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import CLUSTER

from tfos_ml import TFEstimator, errors
from tfos_ml.__main__ import main
from tfos_ml.common.packed_environment import MANIFEST
from tfos_ml.driver.preflight import check_settings

HERE = ".".join(platform.python_version_tuple()[:2])
MACHINE = platform.machine()
OTHER = "aarch64" if MACHINE != "aarch64" else "x86_64"
SYSTEM_PATH = os.environ["PATH"]


class Site:
    """A place where small packages are installed, before all others on the path; tfos_ml there needs ``tiny`` alone."""

    def __init__(self, directory: Path):
        self.directory = directory
        needs = 'Requires-Dist: tiny\nRequires-Dist: absent; extra == "more"\nProvides-Extra: more\n'
        needs += 'Requires-Dist: tfos_ml[more]; extra == "all"\nProvides-Extra: all\n'
        self.install("tfos_ml", metadata=needs)
        self.install("tiny")

    def install(self, name: str, tag: str = "any", metadata: str = "", **files: str) -> None:
        info = f"{name}-1.0.dist-info"
        texts = {
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{metadata}",
            f"{info}/WHEEL": f"Wheel-Version: 1.0\nTag: py3-none-{tag}\n",
            f"{info}/INSTALLER": "pip\n",
            **{f"{info}/{file}": text for file, text in files.items()},
        }
        if name != "tfos_ml":
            texts |= {f"{name}/__init__.py": "VALUE = 42\n", f"{name}/tests/__init__.py": ""}
        record = "".join(f"{file},,\n" for file in [*texts, "../../bin/script"])
        for file, text in {**texts, f"{info}/RECORD": record}.items():
            (self.directory / file).parent.mkdir(parents=True, exist_ok=True)
            (self.directory / file).write_text(text)


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return Site(tmp_path / "site")


@pytest.fixture
def pack(tmp_path):
    """Pack; the archive."""

    def pack(*arguments: str) -> Path:
        archive = tmp_path / "environment.tar.gz"
        assert main(["pack", str(archive), "--extras", "", *arguments]) == 0
        return archive

    return pack


@pytest.fixture
def tools(tmp_path) -> str:
    """A search path with what the script of an archive calls, and no Python."""
    directory = tmp_path / "tools"
    directory.mkdir()
    for tool in ("uname", "getconf", "dirname", "hostname"):
        (directory / tool).symlink_to(f"/usr/bin/{tool}")
    return str(directory)


def run(archive: Path, directory: Path, *arguments: str, path: str = SYSTEM_PATH, **variables: str):
    """Run the Python of an archive where it is unpacked as Spark does it, with tar."""
    directory.mkdir()
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(directory)], check=True)
    command = [str(directory / "bin" / "python"), *arguments]
    return subprocess.run(
        command, env={"PATH": path, **variables}, cwd="/", capture_output=True, text=True, timeout=60, check=False
    )


def names(archive: Path) -> list[str]:
    with tarfile.open(archive) as tar:
        return tar.getnames()


def test_it_runs_where_it_is_unpacked_with_the_python_of_the_host(site, pack, tmp_path, capsys):
    archive = pack()
    printed = capsys.readouterr().out
    for line in (
        f'config("spark.archives", "{archive}#environment")',
        'os.environ["PYSPARK_PYTHON"] = "./environment/bin/python"',
        f'spark.addArtifact("{archive}#environment", archive=True)',
        'spark.conf.set("spark.sql.execution.pyspark.python", "./environment/bin/python")',
        f"For Python {HERE}, as the driver's\n",
    ):
        assert line in printed
    bin_directory = tmp_path / "host"
    bin_directory.mkdir()
    (bin_directory / "python3").symlink_to(sys.executable)
    look = "import tiny, tfos_ml, os; print(tiny.VALUE, tiny.__file__, tfos_ml.__file__)"
    done = run(archive, tmp_path / "e", "-c", look, path=f"{bin_directory}:/usr/bin:/bin")
    packages = tmp_path / "e" / "site-packages"
    assert done.stdout == f"42 {packages}/tiny/__init__.py {packages}/tfos_ml/__init__.py\n", done.stderr


def test_what_no_run_needs_is_left_out(site, pack, capsys):
    assert "site-packages/tiny/tests/__init__.py" not in names(pack())
    found = names(pack("--everything"))
    assert found[0] == MANIFEST
    assert "site-packages/tiny/tests/__init__.py" in found
    assert not [name for name in found if name.endswith("script")]


@pytest.mark.skipif(sys.base_prefix == "/usr", reason="this Python is the system's")
def test_an_archive_with_its_interpreter_runs_where_no_python_is(site, pack, tools, tmp_path, capsys):
    archive = pack("--with-python")
    assert f"With Python {HERE}, as the driver's, on {MACHINE}\n" in capsys.readouterr().out
    assert not [name for name in names(archive) if name.startswith(f"python/lib/python{HERE}/site-packages/")]
    look = "import ctypes, sqlite3, ssl, subprocess, sys, tiny; print(sys.base_prefix); "
    look += "subprocess.run([sys.executable, '-c', 'import ssl, tiny; print(tiny.VALUE)'], check=True)"
    done = run(archive, tmp_path / "e", "-uc", look, path=tools)
    assert done.stdout == f"{tmp_path / 'e' / 'python'}\n42\n", done.stderr


@pytest.mark.skipif(not os.path.exists("/usr/bin/python3"), reason="the system has no Python")
def test_the_interpreter_of_the_system_is_not_packed(site, tmp_path, capsys):
    archive = tmp_path / "environment.tar.gz"
    arguments = ["--extras", "", "--fresh", "--python", "/usr/bin/python3", "--with-python"]
    assert main(["pack", str(archive), *arguments]) == 1
    error = capsys.readouterr().err
    assert re.match(r"PackedEnvironmentError: --with-python packs a Python in a directory .* is in /usr,", error)
    assert not archive.exists()


def test_packages_that_pip_installs_anew(site, pack, tmp_path, monkeypatch, capsys):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    assert main(["pack", str(tmp_path / "none.tar.gz"), "--extras", "", "--fresh"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("PackedEnvironmentError: pip could not install the packages for")
    assert "No matching distribution found for tiny" in error
    with zipfile.ZipFile(wheels / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        for path in [*site.directory.glob("tiny/*.py"), *site.directory.glob("tiny-1.0.dist-info/*")]:
            wheel.write(path, path.relative_to(site.directory))
    found = names(pack("--fresh", "--add", "tiny==1.0", "--python", sys.executable))
    assert {"site-packages/tiny/__init__.py", "site-packages/tfos_ml/__init__.py"} <= set(found)
    assert {path.name for path in tmp_path.iterdir()} == {"environment.tar.gz", "site", "wheels"}


@pytest.mark.parametrize(
    ("tag", "path", "message"),
    [
        (f"manylinux_2_17_{OTHER}", SYSTEM_PATH, f"packed for {OTHER}, and .* is {MACHINE}"),
        (f"manylinux_2_99_{MACHINE}", SYSTEM_PATH, r"packed for glibc 2.99 or newer, and .* has glibc 2\."),
        ("any", "no python", f"packed for Python {HERE}, and .* has none on PATH"),
    ],
    ids=["machine", "glibc", "Python"],
)
def test_a_host_that_it_is_not_for(site, pack, tools, tmp_path, tag, path, message):
    site.install("tiny", tag)
    done = run(pack(), tmp_path / "e", "-c", "pass", path=tools if path == "no python" else path)
    assert done.returncode == 1
    assert re.search(message, done.stderr)


@pytest.mark.parametrize(
    ("name", "given", "arguments", "message"),
    [
        ("other", {}, ["--extras", "more"], "absent is to be packed, and absent is not installed here"),
        ("other", {}, ["--extras", "all"], "absent is to be packed, and absent is not installed here"),
        ("other", {}, ["--extras", "none"], "tfos_ml has no extra none; expected some of all, more"),
        ("other", {"INSTALLER": "conda\n"}, ["--add", "other"], "other was installed by conda.* --fresh"),
        ("other", {"direct_url.json": '{"dir_info": {"editable": true}}'}, ["--add", "other"], "editable mode"),
        ("other", {}, ["--add", "other>=2"], "other>=2 is to be packed, and other is installed as 1.0"),
        ("other", {}, ["--python", "/nowhere/python"], "--python=/nowhere/python cannot be run"),
    ],
)
def test_what_cannot_be_packed(site, tmp_path, capsys, name, given, arguments, message):
    site.install(name, **given)
    archive = tmp_path / "environment.tar.gz"
    assert main(["pack", str(archive), "--extras", "", *arguments]) == 1
    assert re.match(f"PackedEnvironmentError: .*{message}", capsys.readouterr().err)
    assert not archive.exists()


def test_packages_for_two_kinds_of_machines(site, tmp_path, capsys):
    site.install("tiny", f"manylinux2014_{MACHINE}")
    site.install("other", f"manylinux2014_{OTHER}")
    assert main(["pack", str(tmp_path / "environment.tar.gz"), "--extras", "", "--add", "other"]) == 1
    assert "machines of several kinds" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.tar.gz*"))


def test_an_archive_of_another_python_is_refused_before_a_job(site, pack):
    archive = pack()
    other = archive.with_name("other.tar.gz")
    with tarfile.open(archive) as tar, tarfile.open(other, "w:gz") as changed:
        for member in tar:
            content = tar.extractfile(member).read().replace(f'"{HERE}"'.encode(), b'"3.1"')
            member.size = len(content)
            changed.addfile(member, io.BytesIO(content))
    with pytest.raises(errors.PackedEnvironmentError, match=r"other.tar.gz#environment, which is for Python 3.1\."):
        check_settings(SimpleNamespace(conf={"spark.archives": f"{other}#environment"}))


def train(args, ctx):
    raise AssertionError("no node should start")


@pytest.mark.chaos  # two executors of a session of their own
def test_executors_of_another_machine(site, pack, sessions, monkeypatch):
    site.install("tiny", f"manylinux_2_17_{OTHER}")
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")
    spark = sessions.get(CLUSTER, spark_archives=f"{pack()}#environment", spark_python_daemon_module="pyspark.daemon")
    with pytest.raises(errors.PackedEnvironmentError, match=f"packed for {OTHER}, and .* is {MACHINE}"):
        TFEstimator(trainFn=train, verbose=0).fit(spark.range(10).withColumnRenamed("id", "features"))
