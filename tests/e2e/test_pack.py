"""``python -m tfos_ml pack``, as users run it, of few small packages; tests/cluster/test_packed.py packs TensorFlow."""

from __future__ import annotations

import io
import os
import platform
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tfos_ml import errors
from tfos_ml.__main__ import main
from tfos_ml.common.packed_environment import MANIFEST
from tfos_ml.driver.preflight import check_settings

HERE = ".".join(platform.python_version_tuple()[:2])
MACHINE = platform.machine()
OTHER = "aarch64" if MACHINE != "aarch64" else "x86_64"


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


def run(archive: Path, directory: Path, *arguments: str, path: str | Path):
    """Run the Python of an archive where it is unpacked as Spark does it, with tar."""
    directory.mkdir()
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(directory)], check=True)
    command, environment = [str(directory / "bin" / "python"), *arguments], {"PATH": str(path)}
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=False)


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
    assert names(archive)[0] == MANIFEST
    assert not [name for name in names(archive) if name.endswith("script") or "tests" in name]  # no run needs them
    assert "site-packages/tiny/tests/__init__.py" in names(pack("--everything"))


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        (f"manylinux_2_17_{OTHER}", f"packed for {OTHER}, and .* is {MACHINE}"),
        (f"manylinux_2_99_{MACHINE}", r"packed for glibc 2.99 or newer, and .* has glibc 2\."),
        ("any", f"packed for Python {HERE}, and .* has none on PATH"),
    ],
    ids=["machine", "glibc", "Python"],
)
def test_a_host_that_it_is_not_for(site, pack, tmp_path, tag, message):
    (tmp_path / "tools").mkdir()  # with what the script of an archive calls, and no Python
    for tool in ("uname", "getconf", "dirname", "hostname"):
        (tmp_path / "tools" / tool).symlink_to(f"/usr/bin/{tool}")
    site.install("tiny", tag)
    done = run(pack(), tmp_path / "e", "-c", "pass", path=tmp_path / "tools" if tag == "any" else os.environ["PATH"])
    assert done.returncode == 1
    assert re.search(message, done.stderr)


@pytest.mark.parametrize(
    ("given", "arguments", "message"),
    [
        ({}, ["--extras", "all"], "absent is to be packed, and absent is not installed here"),
        ({"INSTALLER": "conda\n"}, ["--add", "other"], "other was installed by conda.* --fresh"),
        ({"direct_url.json": '{"dir_info": {"editable": true}}'}, ["--add", "other"], "editable mode"),
        ({}, ["--add", "other>=2"], "other>=2 is to be packed, and other is installed as 1.0"),
        ({"tag": f"manylinux2014_{OTHER}"}, ["--add", "other"], "machines of several kinds"),
    ],
)
def test_what_cannot_be_packed(site, tmp_path, capsys, given, arguments, message):
    site.install("tiny", f"manylinux2014_{MACHINE}")
    site.install("other", **given)
    archive = tmp_path / "environment.tar.gz"
    assert main(["pack", str(archive), "--extras", "", *arguments]) == 1
    assert re.match(f"PackedEnvironmentError: .*{message}", capsys.readouterr().err)
    assert not archive.exists()


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
