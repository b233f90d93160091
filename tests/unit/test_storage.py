"""Filesystems that are not there: errors that say so, in time."""

import socket
import threading
import time

import pytest

from tfos_ml import TFModel
from tfos_ml.common import filesystems
from tfos_ml.errors import DestinationError, ModelError
from tfos_ml.inference.publishing import check_destination
from tfos_ml.keras.model_dir import check_model_dir

QUICK = 10.0
CREDENTIALS = "AKIAKEY:hunter2secret"


@pytest.fixture
def silent_port():
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def s3(port):
    return f"s3://{CREDENTIALS}@bucket/models/1?scheme=http&endpoint_override=127.0.0.1:{port}"


def storage_threads():
    return [thread for thread in threading.enumerate() if thread.name == "storage"]


def check_message(text):
    assert "s3://***@bucket/models/1" in text
    assert "credentials" in text
    assert "endpoint_override" in text
    assert "hunter2secret" not in text
    assert "AKIAKEY" not in text


@pytest.mark.slow
def test_silent_s3_is_a_typed_error_in_time(silent_port, monkeypatch):
    monkeypatch.setattr(filesystems, "ANSWER_SECONDS", 1.0)
    begun = time.monotonic()
    with pytest.raises(ModelError, match="cannot be read from the driver") as caught:
        TFModel(exportDir=s3(silent_port)).signature()
    assert time.monotonic() - begun < QUICK
    check_message(str(caught.value))
    assert not storage_threads()


def test_s3_that_refuses_is_a_typed_error(closed_port, monkeypatch):
    monkeypatch.setattr(filesystems, "ATTEMPTS", 1)
    begun = time.monotonic()
    with pytest.raises(ModelError) as model:
        TFModel(exportDir=s3(closed_port)).signature()
    with pytest.raises(DestinationError) as directory:
        check_model_dir(s3(closed_port))
    assert time.monotonic() - begun < QUICK
    check_message(str(model.value))
    check_message(str(directory.value))
    problem = check_destination(s3(closed_port))
    assert "endpoint_override" in problem
    assert "hunter2secret" not in problem


def test_filesystem_that_never_answers_is_given_up_at_the_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr(filesystems, "DEADLINE", 0.2)
    answer = threading.Event()
    try:
        with pytest.raises(filesystems.StorageError, match=r"has not answered for 0.2 s. Check .* the network"):
            filesystems.request("gs://bucket/x", lambda filesystem, path: answer.wait(60))
    finally:
        answer.set()
        for thread in storage_threads():
            thread.join(10)


def test_hdfs_without_its_libraries_says_what_to_set():
    with pytest.raises(ModelError, match="JAVA_HOME, HADOOP_HOME and CLASSPATH"):
        TFModel(exportDir="hdfs://user@127.0.0.1:1/models/1").signature()


def test_password_that_is_no_uri_is_not_shown():
    with pytest.raises(ModelError, match="no URI that pyarrow.fs understands") as caught:
        TFModel(exportDir="s3://key:hunt/er2@bucket/a").signature()
    assert "er2" not in str(caught.value)
