"""TensorFlow imported without the lines it prints before any log level can stop them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def held_back_stderr() -> Iterator[None]:
    """Hold back what is written to the process's stderr, and replay it only on an error."""
    sys.stderr.flush()
    real = os.dup(2)
    held = os.memfd_create("stderr")
    os.dup2(held, 2)
    try:
        yield
    except BaseException:
        os.lseek(held, 0, os.SEEK_SET)
        with open(held, "rb", closefd=False) as file:
            os.write(real, file.read())
        raise
    finally:
        os.dup2(real, 2)
        os.close(real)
        os.close(held)


def import_tensorflow() -> None:
    """Import TensorFlow, quietly."""
    if "tensorflow" in sys.modules:
        return
    with held_back_stderr():
        import tensorflow  # noqa: F401
