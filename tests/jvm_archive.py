"""Classes of Spark as the JVM has them in memory, in a file that later JVMs map (class data sharing).

Starting Spark is mostly loading classes, and a run of the tests starts a hundred JVMs. This module, run as a program,
makes the file in the virtual environment, with what an ordinary session loads; JVMs that find it there start in half
the processor time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

# Short programs gain more from a JVM that compiles little than from fast code; Spark's classes need no verification.
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
SESSION = """
import sys
sys.path[:] = sys.argv[1:]
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import SparkSession, functions as F

spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2").config("spark.driver.host", "127.0.0.1").getOrCreate()
)
df = spark.range(0, 100, 1, 2).select("id", F.rand(1).alias("a"), F.array(F.lit(1.0)).alias("b"))
df = VectorAssembler(inputCols=["a"], outputCol="v").transform(df).cache()
df.groupBy("id").count().orderBy("id").toPandas()
df.select("id", "a", "b").mapInArrow(lambda batches: batches, "id long, a double, b array<double>").collect()
rdd = df.rdd.map(lambda row: row.id).repartition(2)
rdd.mapPartitions(list).collect()
rdd.barrier().mapPartitions(list).collect()
df.select("id", "b").write.parquet(sys.argv[1] + "/p")
spark.read.parquet(sys.argv[1] + "/p").count()
gateway = spark.sparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()  # the JVM ends, and writes the file
gateway.proc.wait(200)
"""


def archive() -> Path | None:
    """Where the file is, or is to be; None where there is no Java. It belongs to one Spark and one Java."""
    from pyspark import __version__

    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        return None
    real = Path(java).resolve()
    about = zlib.crc32(f"{__version__} {real} {real.stat().st_mtime_ns} {OPTIONS}".encode())
    return Path(sys.prefix, "var", f"spark-{about:08x}.jsa")


def jvm_options() -> str:
    """Options for the JVMs of tests, with the file if it is there."""
    file = archive()
    return OPTIONS if file is None or not file.exists() else f"{OPTIONS} -XX:SharedArchiveFile={file} -Xlog:disable"


def make() -> None:
    """Make the file, in half a minute, unless it is there."""
    file = archive()
    if file is None or file.exists():
        return
    import tempfile

    file.parent.mkdir(exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    with tempfile.TemporaryDirectory() as directory:
        options = f"{OPTIONS} -XX:ArchiveClassesAtExit={partial} -Xlog:disable"
        subprocess.run(
            [sys.executable, "-c", SESSION, directory, *sys.path[1:]],
            env={**os.environ, "SPARK_SUBMIT_OPTS": options, "PYSPARK_PYTHON": sys.executable},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=300,
            check=False,
        )
    if partial.exists():
        partial.rename(file)


if __name__ == "__main__":
    make()
