"""SavedModels that TensorFlow cannot load: with ops that it does not have, and damaged."""

import os
import sys

import pytest
import tensorflow as tf

from tfos_ml import errors
from tfos_ml.inference.saved_model import load


@pytest.fixture
def exported(tmp_path):
    """A SavedModel with the op StringLowex, which no package has."""
    module = tf.Module()
    module.serve = tf.function(lambda text: {"y": tf.strings.lower(text)})
    signature = module.serve.get_concrete_function(text=tf.TensorSpec([None], tf.string, "text"))
    tf.saved_model.save(module, str(tmp_path), signatures=signature)
    file = tmp_path / "saved_model.pb"
    file.write_bytes(file.read_bytes().replace(b"StringLower", b"StringLowex"))
    return tmp_path


def test_without_tensorflow_text_the_error_says_how_to_install_it(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    release = tf.__version__.rpartition(".")[0].replace(".", r"\.")
    wanted = rf"op StringLowex,.*pip install 'tensorflow-text=={release}\.\*'\. It is not installed here"
    with pytest.raises(errors.MissingPackageError, match=wanted):
        load(exported, "serving_default", "serve")


def test_a_damaged_model_is_told(exported):
    os.truncate(exported / "saved_model.pb", 100)
    with pytest.raises(errors.ModelError, match=r"saved_model\.pb is not a SavedModel, or is damaged"):
        load(exported, "serving_default", "serve")
