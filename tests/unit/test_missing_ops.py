"""SavedModels with ops that TensorFlow does not have."""

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


def test_tensorflow_text_of_another_release(exported, monkeypatch, tmp_path):
    """Its library has symbols of another TensorFlow."""
    monkeypatch.delitem(sys.modules, "tensorflow_text", raising=False)
    (tmp_path / "tensorflow_text.py").write_text("raise OSError('undefined symbol: _ZN10tensorflow4data')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(errors.ModelError, match=r"op StringLowex.*cannot be imported: undefined symbol: _ZN10"):
        load(exported, "serving_default", "serve")


def test_an_op_that_tensorflow_text_does_not_have(exported, monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "tensorflow_text", raising=False)
    (tmp_path / "tensorflow_text.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(errors.ModelError, match="cannot load the SavedModel: .*Op type not registered 'StringLowex'"):
        load(exported, "serving_default", "serve")
