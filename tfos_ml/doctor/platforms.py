"""The platforms that the doctor knows when it runs on one, and what is different there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tfos_ml.doctor.host import OK, Finding


@dataclass(frozen=True)
class Platform:
    """A platform, and an environment variable or a file that it alone has on its hosts."""

    name: str
    mark: str
    difference: str

    def version(self) -> str | None:
        """What the variable says, empty for a file; None if this host is not of the platform."""
        if self.mark.startswith("/"):
            return "" if Path(self.mark).exists() else None
        return os.environ.get(self.mark)


PLATFORMS = (
    Platform(
        "Databricks",
        "DATABRICKS_RUNTIME_VERSION",
        "Runtimes since 18 have no TensorFlow. Name the runtime's MLflow and protobuf, or pip replaces them: %pip "
        "install 'tfos_ml[tensorflow]' mlflow==<the runtime's version> 'protobuf<6'. On serverless, and with standard "
        "access, the session is one of Spark Connect.",
    ),
    Platform(
        "Amazon EMR",
        "EMR_RELEASE_LABEL",
        "The default Python is 3.9, which is too old: set PYSPARK_PYTHON to Python 3.11 or newer, here and on the "
        "executors, or send one along (python -m tfos_ml pack). Dynamic allocation is on.",
    ),
    Platform(
        "Dataproc",
        "DATAPROC_IMAGE_VERSION",
        "There is no TensorFlow: install it when the cluster is created, or send it along (python -m tfos_ml pack). "
        "Dynamic allocation is on.",
    ),
    Platform(
        "Microsoft Fabric",
        "/home/trusted-service-user/.trident-context",
        "Runtime 2.0 has no TensorFlow: add it to the environment of the workspace. Dynamic allocation may be on.",
    ),
)


def check_platform() -> list[Finding]:
    """One finding for the platform that this host is of; none elsewhere."""
    return [
        Finding("Platform", OK, f"{platform.name} {version}".strip(), platform.difference)
        for platform in PLATFORMS
        if (version := platform.version()) is not None
    ]
