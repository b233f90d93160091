"""What errors, logs and Params' explanations may show."""

import pytest
from node_tasks import make_start, make_task

from tfos_ml import KerasEstimator, TFModel
from tfos_ml.common.redact import redact
from tfos_ml.protocol.addresses import ControlAddress
from tfos_ml.protocol.node_task import NodeSettings


def test_passwords_are_not_shown_and_what_is_none_is():
    for text, shown in {
        "ftp://user:hunter2@host/models": "ftp://***@host/models",
        "s3://key:hunt%2Fer2@bucket/a@2": "s3://***@bucket/a@2",
        "ftp://user:hun@ter2@host": "ftp://***@host",
        "see S3A://KEY:hunter2@bucket, or ftp://a:hunter2@b": "see S3A://***@bucket, or ftp://***@b",
        "s3://bucket/a?secret_key=hunter2&region=x": "s3://bucket/a?secret_key=***&region=x",
    }.items():
        assert redact(text) == shown
    for text in (
        "/models/a@b",
        "hdfs://[::1]:8020/user/a@b",
        "s3://bucket/a?region=x&endpoint_override=127.0.0.1:9000",
        "mail a@b: see https://host:80/x",
    ):
        assert redact(text) == text


URI = "ftp://user:hunter2@host/models"


@pytest.mark.parametrize("stage", [KerasEstimator, TFModel])
def test_explanations_of_params_tell_no_password(stage):
    instance = stage(exportDir=URI)
    for text in (instance.explainParam("exportDir"), instance.explainParams()):
        assert "ftp://***@host/models" in text
        assert "hunter2" not in text
    assert instance.getExportDir() == URI


def test_a_task_is_shown_without_its_secrets():
    task = make_task(
        settings=NodeSettings(model_dir=URI, log_dir=URI, files=[URI]),
        environment={"A": "hunter2"},
        export_dir=URI,
        control=ControlAddress("grpc+tls://h:1", "hunter2"),
    )
    assert "hunter2" not in repr(task)
    assert "hunter2" not in repr(make_start(secret="hunter2"))  # the first message to its process
