"""Every setting of tfos_ml in a Spark session: its name, its default, and what it may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfos_ml.common.timeouts import GROW_SECONDS, IDLE_SECONDS, LEASE_SECONDS
from tfos_ml.errors import ClusterConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_PORT = 65535
ANY_PORT = range(1)
AUTO = "auto"  # one scoring process per executor, except for small models on many cores, and if no process is forked
EXECUTOR, WORKER = "executor", "worker"
SCORED_BY = (AUTO, EXECUTOR, WORKER)
_UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}


@dataclass(frozen=True)
class Setting:
    """One setting; `parse` takes its name and its text, and raises ``ClusterConfigError`` if the text is wrong."""

    name: str
    default: Any
    parse: Callable[[str, str], Any]

    def __str__(self) -> str:
        return self.name

    def of(self, spark: SparkSession) -> Any:
        text = spark.conf.get(self.name, None)
        return self.default if text is None or not text.strip() else self.parse(self.name, text.strip())


def number(name: str, text: str) -> int:
    """A port, or a number of ports."""
    if not text.isdecimal() or int(text) > MAX_PORT:
        raise ClusterConfigError(f"{name}={text} is not a number from 0 to {MAX_PORT}. Set it to one, or unset it.")
    return int(text)


def ports(name: str, text: str) -> range:
    """A port, or a range of ports as ``a-b``; 0 is any."""
    first, _, last = text.partition("-")
    try:
        value = range(int(first), int(last or first) + 1)
    except ValueError:
        value = range(0)
    if not value or value[0] < 0 or value[-1] > MAX_PORT or (value[0] == 0 and len(value) > 1):
        raise ClusterConfigError(f"{name}={text} is no range of ports. Set it as in {name}=40000-40099.")
    return value


def seconds(name: str, text: str) -> float:
    """A positive number of seconds."""
    try:
        value = float(text.rstrip("s"))
    except ValueError:
        value = 0.0
    if not value > 0:
        raise ClusterConfigError(f"{name}={text} must be a positive number of seconds, for instance 60.")
    return value


def seconds_or_none(name: str, text: str) -> float:
    """A number of seconds, or 0."""
    return 0.0 if text.rstrip("s") == "0" else seconds(name, text)


def size(name: str, text: str) -> int:
    """A number of bytes."""
    try:
        value = parse_bytes(text, "b")
    except (ValueError, KeyError):
        value = -1
    if value < 0:
        raise ClusterConfigError(f"{name}={text} must be a size, for instance 4g, 512m, or a number of bytes.")
    return value


def parse_bytes(text: str, default_unit: str) -> int:
    """A size as Spark writes it ("2g", "512 m", "4gb") in bytes; raises ``ValueError`` or ``KeyError``."""
    digits = text.strip().lower().rstrip("b").rstrip("i").strip()
    unit = digits[-1] if digits[-1:].isalpha() else default_unit
    return int(float(digits.rstrip("kmgtp").strip()) * _UNITS[unit])


def scored_by(name: str, text: str) -> str:
    """Which process scores rows."""
    if text not in SCORED_BY:
        raise ClusterConfigError(f"{name}={text} must be one of {', '.join(SCORED_BY)}.")
    return text


PORT = Setting("spark.tfos_ml.port", 0, number)
NODE_PORTS = Setting("spark.tfos_ml.nodePorts", ANY_PORT, ports)
TENSORBOARD_PORT = Setting("spark.tfos_ml.tensorboardPort", 0, number)
CLIENT_HOST = Setting("spark.tfos_ml.clientHost", None, lambda name, text: text)
SHARED_DIR = Setting("spark.tfos_ml.sharedDir", None, lambda name, text: text)
LEASE = Setting("spark.tfos_ml.leaseTimeout", LEASE_SECONDS, seconds)
GROW = Setting("spark.tfos_ml.growSeconds", GROW_SECONDS, seconds)
WORKER_GRACE = Setting("spark.tfos_ml.workerGrace", 259_200.0, seconds)  # 3 days, as TFCluster.shutdown waits
EVALUATOR_GRACE = Setting("spark.tfos_ml.evaluatorGrace", 60.0, seconds)
IDLE = Setting("spark.tfos_ml.idleSeconds", IDLE_SECONDS, seconds_or_none)
SCORING_PROCESS = Setting("spark.tfos_ml.scoringProcess", AUTO, scored_by)
SPOOL_MEMORY = Setting("spark.tfos_ml.spoolMemory", None, size)  # None: a share of what is free
SHUFFLE_MEMORY = Setting("spark.tfos_ml.shuffleMemory", 16 << 30, size)
ALLOW_PLAINTEXT = Setting("spark.tfos_ml.allowPlaintext", False, lambda name, text: text.lower() == "true")
SETTINGS = (
    *(PORT, NODE_PORTS, TENSORBOARD_PORT, CLIENT_HOST, SHARED_DIR, LEASE, GROW, WORKER_GRACE, EVALUATOR_GRACE, IDLE),
    *(SCORING_PROCESS, SPOOL_MEMORY, SHUFFLE_MEMORY, ALLOW_PLAINTEXT),
)
