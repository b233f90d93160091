"""Parts of Keras that import scikit-learn and matplotlib are loaded when they are used, not when they are looked at."""

import os
import subprocess
import sys

import pytest

from tfos_ml.inference.tensorflow_import import has_gpu_device

pytestmark = pytest.mark.slow
PROGRAM = """
import inspect, pickle, sys, threading
from tfos_ml.inference.tensorflow_import import import_keras_lightly, import_tensorflow

import_keras_lightly()
import_tensorflow()
import keras
import tensorflow as tf

@tf.function
def converted(x):
    if tf.reduce_sum(x) > 0:
        return x
    return -x

heavy = ("sklearn", "matplotlib.pyplot", "scipy.stats")
converted(tf.constant([-1.0]))
inspect.getmodule(converted)
pickle.dumps(threading.get_ident)
print(hasattr(keras.wrappers, "nothing"), hasattr(keras.wrappers, "__path__"))
print([name for name in heavy if name in sys.modules])

found = []
threads = [threading.Thread(target=lambda: found.append(keras.wrappers.SKLearnClassifier)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print({one.__name__ for one in found}, len(found))
from keras.visualization import plot_image_gallery
print(plot_image_gallery.__name__, "SKLearnRegressor" in dir(keras.src.wrappers))
print([name for name in heavy if name in sys.modules])
"""


def test_they_are_loaded_when_used(tmp_path):
    program = tmp_path / "program.py"  # AutoGraph reads its source
    program.write_text(PROGRAM)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, str(program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.stdout.splitlines() == [
        "False True",
        "[]",
        "{'SKLearnClassifier'} 4",
        "plot_image_gallery True",
        "['sklearn', 'matplotlib.pyplot', 'scipy.stats']",
    ], done.stderr[-3000:]
    assert has_gpu_device() or done.stderr == ""  # TensorFlow starts without a word; with a GPU it has more to say
