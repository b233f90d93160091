"""A checkpoint on its way from the chief to the driver."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfos_ml.inference import archive
from tfos_ml.protocol.control_client import ControlClient

logger = logging.getLogger(__name__)


def send_checkpoint(
    control: dict[str, str] | None, report: dict[str, Any], timeout: float, tell: Callable[[str], None]
) -> None:
    """Send an exported model in a thread, delete it, and tell the process that it is gone.

    Parameters
    ----------
    control : dict of str to str, or None
        Address and token of the driver's control server; without one nothing is sent.
    report : dict
        What goes with it; its ``directory`` is the model's.
    timeout : float
        Seconds that it may take.
    tell : callable
        Tells the TensorFlow process, ``tell(kind)``.
    """
    threading.Thread(target=_run, args=(control, report, timeout, tell), name="checkpoint", daemon=True).start()


def _run(control: dict[str, str] | None, report: dict[str, Any], timeout: float, tell: Callable[[str], None]) -> None:
    directory = Path(report.pop("directory"))
    try:
        if control is not None:
            _send(directory, control, report, timeout)
    except Exception as error:  # training must not depend on it
        logger.warning("Checkpoint of epoch %d did not reach the driver: %s", report["epoch"], error)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        tell("checkpoint_taken")


def _send(directory: Path, control: dict[str, str], report: dict[str, Any], timeout: float) -> None:
    client = ControlClient(**control)
    try:
        with tempfile.TemporaryDirectory(dir=directory.parent) as packed:
            client.send_file(archive.pack(str(directory), Path(packed)), report, timeout)
    finally:
        client.close()
