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
from tfos_ml.protocol.messages import CheckpointTaken

logger = logging.getLogger(__name__)


def send_checkpoint(
    control: dict[str, str] | None,
    directory: str,
    report: dict[str, Any],
    timeout: float,
    send: Callable[[CheckpointTaken], None],
) -> None:
    """Send an exported model to the driver in a thread, delete it, and answer the process.

    Parameters
    ----------
    control : dict of str to str, or None
        Address and token of the driver's control server; without one nothing is sent.
    directory : str
        Where the model is.
    report : dict
        Metrics and names that go with it.
    timeout : float
        Seconds that it may take.
    send : callable
        Sends the answer to the TensorFlow process.
    """
    arguments = (control, Path(directory), report, timeout, send)
    threading.Thread(target=_run, args=arguments, name="checkpoint", daemon=True).start()


def _run(
    control: dict[str, str] | None,
    directory: Path,
    report: dict[str, Any],
    timeout: float,
    send: Callable[[CheckpointTaken], None],
) -> None:
    try:
        if control is not None:
            _send(directory, control, report, timeout)
    except Exception as error:  # training must not depend on it
        logger.warning("Checkpoint of epoch %d did not reach the driver: %s", report["epoch"], error)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        send(CheckpointTaken())


def _send(directory: Path, control: dict[str, str], report: dict[str, Any], timeout: float) -> None:
    client = ControlClient(**control)
    try:
        with tempfile.TemporaryDirectory(dir=directory.parent) as packed:
            client.send_file(archive.pack(str(directory), Path(packed)), report, timeout)
    finally:
        client.close()
