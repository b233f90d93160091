"""Hadoop's names for S3, and what pyarrow is given instead."""

from pyarrow import fs

from tfos_ml.common import filesystems, hadoop
from tfos_ml.inference.publishing import check_destination

URI = "s3a://bucket/models/a%20b"
KEYS = {"fs.s3a.access.key": "AKIA/KEY", "fs.s3a.secret.key": "s3cr/t+@"}
SIMPLE = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
NAMED = {"fs.s3a.endpoint.region": "eu-west-3"}  # so that nobody asks the network for it


def options(uri):
    filesystem, path = fs.FileSystem.from_uri(uri)
    assert filesystem.type_name == "s3"
    return filesystem.__reduce__()[1][0], path


def translated(uri=URI, **settings):
    return hadoop.s3_uri(uri, {**NAMED, **{name.replace("__", "."): value for name, value in settings.items()}}.get)


def test_relative_paths_are_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hadoop.pyarrow_uri("models/1") == str(tmp_path / "models" / "1")
    for uri in ("/models/1", "file:/models/1", "hdfs://nn/models", "simplecache::gs://bucket/models"):
        assert hadoop.pyarrow_uri(uri) == uri


def test_path_region_endpoint_and_keys_are_taken_and_keys_hidden_in_what_is_shown():
    settings = {"fs.s3a.endpoint": "minio:9000", "fs.s3a.connection.ssl.enabled": "false", **KEYS}
    uri = translated(**settings, **{"fs.s3a.aws.credentials.provider": f"software.Unknown,{SIMPLE}"})
    found, path = options(uri)
    assert path == "bucket/models/a b"
    assert (found["region"], found["scheme"], found["endpoint_override"]) == ("eu-west-3", "http", "minio:9000")
    assert (found["access_key"], found["secret_key"]) == ("AKIA/KEY", "s3cr/t+@")
    assert "s3cr" not in filesystems.redact(uri)
    assert "AKIA" not in filesystems.redact(uri)


def test_hosts_search_where_the_settings_have_no_keys():
    settings = KEYS | {"fs.s3a.aws.credentials.provider": "com.example.Own"}
    assert translated(**settings) == "s3://bucket/models/a%20b?region=eu-west-3"


def test_what_a_uri_says_itself_wins():
    uri = "s3://key:sec/ret@bucket/x"
    assert translated(uri, **KEYS) == uri


def test_without_a_session_the_error_says_what_to_write(monkeypatch):
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    assert hadoop.pyarrow_uri(URI) == URI
    assert "Write 's3://bucket/models/a%20b?region=...'" in check_destination(URI)
