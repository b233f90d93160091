"""Filesystems that are not there: errors that say so, in time."""

import socket
import threading
import time

import pytest
from conftest import seconds

from tfos_ml import TFModel
from tfos_ml.common import filesystems
from tfos_ml.errors import ModelError
from tfos_ml.inference.publishing import check_destination, commit, fetch, listing, stage
from tfos_ml.keras.checkpoint.directory import check_model_dir

QUICK = 10.0
CREDENTIALS = "AKIAKEY:hunter2secret"


@pytest.fixture
def silent_port():
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield server.getsockname()[1]


def s3(port):
    return f"s3://{CREDENTIALS}@bucket/models/1?scheme=http&endpoint_override=127.0.0.1:{port}"


def storage_threads():
    return [thread for thread in threading.enumerate() if thread.name == "storage"]


def test_what_pyarrow_does_not_know_is_opened_by_fsspec(tmp_path):
    uri = f"memory://{tmp_path}/state"
    check_model_dir(uri)
    source = tmp_path / "source"
    (source / "variables").mkdir(parents=True)
    (source / "variables" / "index").write_bytes(b"index")
    (source / "saved_model.pb").write_bytes(b"model")
    stage(str(source), uri, "run")
    commit(uri, "run")
    assert len(listing(uri)) == 2
    fetch(uri, str(tmp_path / "fetched"))
    assert (tmp_path / "fetched" / "saved_model.pb").read_bytes() == b"model"
    assert (tmp_path / "fetched" / "variables" / "index").read_bytes() == b"index"
    assert "not empty" in check_destination(uri)
    filesystem, path = filesystems.open_uri(uri)
    filesystem.delete_dir(path)
    assert listing(uri) is None


@pytest.mark.slow
def test_silent_s3_is_a_typed_error_in_time(silent_port, monkeypatch):
    monkeypatch.setattr(filesystems, "STORE_ANSWER_SECONDS", 1.0)
    begun = time.monotonic()
    with pytest.raises(ModelError, match="The driver cannot read") as caught:
        TFModel(exportDir=s3(silent_port)).signature()
    assert time.monotonic() - begun < seconds(QUICK)
    for part in ("s3://***@bucket/models/1", "credentials", "endpoint_override"):
        assert part in str(caught.value)
    assert "hunter2secret" not in str(caught.value)
    assert "AKIAKEY" not in str(caught.value)
    assert not storage_threads()


def test_filesystem_that_never_answers_is_given_up_at_the_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr(filesystems, "STORE_SECONDS", 0.2)
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
