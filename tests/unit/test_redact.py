"""What errors, logs and Params' explanations may show."""

import pytest

from tfos_ml import KerasEstimator, TFEstimator, TFModel
from tfos_ml.common.redact import redact
from tfos_ml.data.schema import FeedSchema
from tfos_ml.errors import DestinationError, ModelError
from tfos_ml.inference.publishing import check_destination, fetch
from tfos_ml.keras.checkpoint.directory import check_model_dir
from tfos_ml.protocol.addresses import ControlAddress
from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.protocol.node_task import NodeSettings, NodeTask


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ftp://user:hunter2@host/models", "ftp://***@host/models"),
        ("s3://key:hunt/er2@bucket/a", "s3://***@bucket/a"),
        ("s3://key:hunt%2Fer2@bucket/a@2", "s3://***@bucket/a@2"),
        ("ftp://user:hun@ter2@host", "ftp://***@host"),
        ("abfss://:hunter2@account.blob/x", "abfss://***@account.blob/x"),
        ("see S3A://KEY:hunter2@bucket, or ftp://a:hunter2@b", "see S3A://***@bucket, or ftp://***@b"),
        ("s3://bucket/a?secret_key=hunter2&region=x", "s3://bucket/a?secret_key=***&region=x"),
        ("https://host/a?v=1&sig=hunter2", "https://host/a?v=1&sig=***"),
    ],
)
def test_passwords_are_not_shown(text, shown):
    assert redact(text) == shown
    assert "hunter2" not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "/models/a@b",
        "file:///models/a@b",
        "hdfs://namenode:8020/user/a@b",
        "hdfs://[::1]:8020/user/a@b",
        "s3://bucket/a?region=x&endpoint_override=127.0.0.1:9000",
        "mail a@b: see https://host:80/x",
        "top-5 @ 1",
    ],
)
def test_what_is_no_password_is_shown(text):
    assert redact(text) == text


URI = "ftp://user:hunter2@host/models"


@pytest.mark.parametrize("stage", [TFEstimator, KerasEstimator, TFModel])
def test_explanations_of_params_tell_no_password(stage):
    instance = stage(exportDir=URI)
    explained = [
        instance.explainParam("exportDir"),
        instance.explainParam(instance.exportDir),
        instance.explainParams(),
    ]
    assert all("ftp://***@host/models" in text and "hunter2" not in text for text in explained)
    assert instance.getExportDir() == URI


def test_a_task_is_shown_without_its_secrets():
    task = NodeTask(
        run_id="r",
        template=make_template(1),
        schema=FeedSchema(()),
        payload=None,
        settings=NodeSettings(model_dir=URI, log_dir=URI, files=[URI]),
        environment={"A": "hunter2"},
        reservation_timeout=1.0,
        export_dir=URI,
        control=ControlAddress("grpc+tls://h:1", "hunter2"),
    )
    assert "hunter2" not in repr(task)


@pytest.mark.parametrize("uri", [URI, "s3://key:hunt/er2@bucket/a"])
def test_errors_of_locations_tell_no_password(uri, tmp_path):
    with pytest.raises(ModelError, match=r"\*\*\*@") as fetching:
        fetch(uri, str(tmp_path / "x"))
    with pytest.raises(DestinationError, match=r"\*\*\*@") as checking:
        check_model_dir(uri)
    for text in (check_destination(uri), str(fetching.value), str(checking.value)):
        assert "hunter2" not in text
        assert "er2" not in text
