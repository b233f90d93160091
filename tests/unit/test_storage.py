"""Filesystems that are not there: errors that say so, in time."""

import socket
import threading
import time

import pytest
from pyarrow.fs import LocalFileSystem

from tfos_ml import TFModel
from tfos_ml.common import filesystems
from tfos_ml.errors import DataError, DestinationError, ModelError
from tfos_ml.inference.publishing import check_destination, commit, fetch, listing, stage
from tfos_ml.keras.model_dir import check_model_dir
from tfos_ml.tfrecord.files import find
from tfos_ml.tfrecord.options import Options
from tfos_ml.tfrecord.writing import Destination, prepare
from tfos_ml.worker.log_upload import LogUpload

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
def test_silent_s3_ends_reading_and_writing_of_tfrecords_in_time(silent_port, monkeypatch):
    monkeypatch.setattr(filesystems, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(filesystems, "ATTEMPTS", 1)
    begun = time.monotonic()
    with pytest.raises(DataError, match="TFRecords at .* cannot be read") as reading:
        find([s3(silent_port)])
    with pytest.raises(DestinationError, match="TFRecords at .* cannot be written") as writing:
        prepare(Destination(s3(silent_port), Options()), "append")
    assert time.monotonic() - begun < QUICK
    check_message(str(reading.value))
    check_message(str(writing.value))


@pytest.mark.parametrize("scheme", ["local", "memory"])
def test_what_pyarrow_does_not_know_is_opened_by_fsspec(tmp_path, scheme):
    uri = f"{scheme}://{tmp_path}/state"
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


def test_what_fsspec_does_not_know_either_says_so():
    assert "fsspec" in check_destination("nowhere://bucket/x")


def test_what_fsspec_lacks_is_named():
    pytest.importorskip("fsspec")
    assert "fsspec cannot open it" in check_destination("dropbox://models/x")


@pytest.mark.parametrize("parents", [0, 2])
def test_a_trial_of_writing_leaves_nothing(tmp_path, parents):
    directory = tmp_path.joinpath(*"ab"[:parents])
    filesystems.write_and_delete(LocalFileSystem(), str(directory / "trial"))
    assert list(tmp_path.iterdir()) == []


def test_event_files_are_copied_when_they_have_changed(tmp_path):
    logs, copies = tmp_path / "logs", tmp_path / "copies"
    upload = LogUpload(str(logs), str(copies))
    assert upload.run()  # nothing is there yet
    (logs / "train").mkdir(parents=True)
    event = logs / "train" / "events.out"
    event.write_bytes(b"one")
    assert upload.run()
    assert (copies / "train" / "events.out").read_bytes() == b"one"
    (copies / "train" / "events.out").unlink()
    assert upload.run()
    assert list((copies / "train").iterdir()) == []
    event.write_bytes(b"one, two")
    assert upload.run()
    assert (copies / "train" / "events.out").read_bytes() == b"one, two"


def test_event_files_that_cannot_be_copied_are_copied_later(tmp_path):
    logs, copies = tmp_path / "logs", tmp_path / "copies"
    logs.mkdir()
    (logs / "events.out").write_bytes(b"one")
    copies.write_text("in the way")
    upload = LogUpload(str(logs), str(copies))
    assert not upload.run()
    assert f"could not be copied to logDir='{copies}'" in upload.problem
    copies.unlink()
    assert upload.run()
    assert upload.problem == ""
    assert (copies / "events.out").read_bytes() == b"one"


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
