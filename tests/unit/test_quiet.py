"""TensorFlow's start-up lines are dropped, and no others; notebooks are kept without output on stderr."""

import contextlib
import os

import pytest

from tfos_ml.inference import tensorflow_import

STARTUP = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795331473.943228   29398 port.cc:153] oneDNN custom operations are on. You may see slightly different
2026-11-22 07:11:13.1: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on. You may see
I0000 00:00:1795331473.952494   29398 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be
E0000 00:00:1743598500.1   29398 cuda_fft.cc:477] Unable to register cuFFT factory: Attempting to register
I0000 00:00:1795331474.137547   29398 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use available
To enable the following instructions: AVX2, in other operations, rebuild TensorFlow with the appropriate flags.
"""
CU_INIT = (
    "E0000 00:00:1795331565.794723   29398 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: Failed "
    "call to cuInit: UNKNOWN ERROR (303)\n"
)
OTHERS = "E0000 00:00:1 2 port.cc:153] out of memory\na line of the user's\n"


@pytest.mark.parametrize("has_gpu", [False, True])
def test_known_lines_are_dropped_and_others_shown_and_all_after_an_error(capfd, monkeypatch, has_gpu):
    monkeypatch.setattr(tensorflow_import, "_GPU_DEVICES", ("/dev/null",) if has_gpu else ())
    with tensorflow_import.held_back_stderr():
        os.write(2, (STARTUP + OTHERS + CU_INIT).encode())
    assert capfd.readouterr().err == OTHERS + (CU_INIT if has_gpu else "")
    with contextlib.suppress(ImportError), tensorflow_import.held_back_stderr():
        os.write(2, STARTUP.encode())
        raise ImportError
    assert capfd.readouterr().err == STARTUP
