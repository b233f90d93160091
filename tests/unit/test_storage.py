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
def test_silent_s3_is_a_typed_error_in_time(monkeypatch):
    monkeypatch.setattr(filesystems, "STORE_ANSWER_SECONDS", 1.0)
    begun = time.monotonic()
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        endpoint = f"scheme=http&endpoint_override=127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ModelError, match="The driver cannot read") as caught:
            TFModel(exportDir=f"s3://AKIAKEY:hunter2@bucket/models/1?{endpoint}").signature()
    assert time.monotonic() - begun < seconds(10.0)
    for part in ("s3://***@bucket/models/1", "credentials", "endpoint_override"):
        assert part in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "AKIAKEY" not in str(caught.value)
    assert not [thread for thread in threading.enumerate() if thread.name == "storage"]


def test_hdfs_without_its_libraries_says_what_to_set():
    with pytest.raises(ModelError, match="JAVA_HOME, HADOOP_HOME and CLASSPATH"):
        TFModel(exportDir="hdfs://user@127.0.0.1:1/models/1").signature()
