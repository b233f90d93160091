"""``pack``, as a command: its arguments, and the lines that it prints to paste."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from tfos_ml.errors import DestinationError, PackedEnvironmentError, TfosMlError
from tfos_ml.pack.archive import CARRIED, SUFFIXES, Packed, write
from tfos_ml.pack.environment import fresh, installed
from tfos_ml.pack.interpreter import files_of_interpreter, interpreter

DESCRIPTION = (
    "Pack TensorFlow, tfos_ml and what they need into one archive, with which executors run that have Spark and "
    "Python alone, and print how to use it."
)
EPILOG = (
    "The executors need a Python of the same minor version, or --with-python. PySpark is not packed: Spark brings its "
    "own. Exit code 0: packed; 1: not, and why."
)
NAME = "environment"  # of the directory that executors unpack it to
SHOWN = 5
USE = """
YARN, Kubernetes, standalone: before the session starts

    os.environ["PYSPARK_PYTHON"] = "./{name}/bin/python"
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    spark = SparkSession.builder.config("spark.archives", "{archive}#{name}").getOrCreate()

Spark Connect: with the client's session

    spark.addArtifact("{archive}#{name}", archive=True)
    spark.conf.set("spark.sql.execution.pyspark.python", "./{name}/bin/python")

Databricks and others that have a Python of their own: copy the archive to a volume, and have an init script of the
cluster run (here PYTHON is that Python, and DIRECTORY is on a local disk)

    mkdir -p DIRECTORY && tar -xzf /Volumes/.../{file} -C DIRECTORY
    echo DIRECTORY/site-packages > $(PYTHON -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/{name}.pth
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``pack`` to the command line."""
    pack = commands.add_parser("pack", description=DESCRIPTION, epilog=EPILOG, help=DESCRIPTION)
    pack.add_argument("archive", type=_archive, help="file to write, as environment.tar.gz")
    pack.add_argument(
        "--add",
        nargs="+",
        action="extend",
        default=[],
        type=_requirement,
        metavar="PACKAGE",
        help="further packages, as scikit-learn, or with --fresh tensorflow-cpu==2.20.0 in place of tensorflow",
    )
    pack.add_argument(
        "--extras",
        type=lambda text: [extra for extra in text.split(",") if extra],
        default=["tensorflow"],
        help="extras of tfos_ml, separated by commas (default tensorflow)",
    )
    pack.add_argument(
        "--fresh",
        action="store_true",
        help="have pip install the packages anew, instead of taking those installed here",
    )
    pack.add_argument("--python", help="with --fresh: an interpreter like the executors' (default this one)")
    pack.add_argument(
        "--with-python",
        action="store_true",
        help="pack the interpreter too, for executors without a Python; it must be in a directory of its own, as uv "
        "or pyenv install it",
    )
    pack.add_argument(
        "--everything",
        action="store_true",
        help="leave out nothing of the packages: neither headers nor tests nor libclang",
    )
    pack.set_defaults(run=run)


def _requirement(text: str) -> str:
    try:
        return str(Requirement(text))
    except InvalidRequirement as error:
        raise argparse.ArgumentTypeError(f"expected a package, as scikit-learn>=1.4, got {text!r}") from error


def _archive(text: str) -> Path:
    if not text.endswith(SUFFIXES):
        raise argparse.ArgumentTypeError(f"expected a name that ends with {' or '.join(SUFFIXES)}, got {text!r}")
    return Path(text).absolute()


def run(arguments: argparse.Namespace) -> int:
    """Pack, and print the lines to paste; or print what is wrong."""
    began = time.monotonic()
    try:
        packed = _pack(arguments)
    except TfosMlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(_summary(arguments.archive, packed, time.monotonic() - began))
    print(USE.format(archive=arguments.archive, file=arguments.archive.name, name=NAME))
    return 0


def _pack(arguments: argparse.Namespace) -> Packed:
    if not arguments.archive.parent.is_dir():
        raise DestinationError(f"There is no directory {arguments.archive.parent}. Make it, or name another file.")
    python = arguments.python or sys.executable
    for_python = interpreter(python)
    carried = files_of_interpreter(for_python) if arguments.with_python else []
    if not arguments.fresh:
        if arguments.python is not None:
            raise PackedEnvironmentError(f"--python={arguments.python} is for packages that --fresh installs; add it.")
        found = installed(arguments.add, arguments.extras)
        return write(arguments.archive, found, for_python, carried, arguments.everything)
    with tempfile.TemporaryDirectory(prefix="tfos_ml-pack-", dir=arguments.archive.parent) as directory:
        found = fresh(arguments.add, arguments.extras, python, Path(directory))
        return write(arguments.archive, found, for_python, carried, arguments.everything)


def _summary(archive: Path, packed: Packed, seconds: float) -> str:
    where = " ".join(filter(None, [packed.machine, packed.glibc and f"glibc 2.{packed.glibc} or newer"]))
    largest = ", ".join(f"{name} {_mb(size)}" for name, size in packed.by_package.most_common(SHOWN))
    lines = [
        f"{archive}: {_mb(packed.size)}, {_mb(packed.unpacked)} unpacked, in {seconds:.0f} s",
        f"{'With' if CARRIED in packed.by_package else 'For'} Python {packed.python}, as the driver's"
        f"{f', on {where}' if where else ''}",
        f"Largest: {largest}",
    ]
    if packed.left_out:
        lines.append(
            f"Left out: headers, tests, libclang and compiled files, {_mb(packed.left_out)} (--everything packs them)"
        )
    if "tensorflow" in packed.by_package:
        lines.append("Without GPUs, tensorflow-cpu is smaller: --fresh --add tensorflow-cpu")
    return "\n".join(lines)


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size < 1e7 else f"{size / 1e6:.0f} MB"
