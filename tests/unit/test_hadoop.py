"""Hadoop's names for S3, and what pyarrow is given instead."""

import pytest
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


def test_the_path_stays_and_the_region_is_taken():
    for scheme in ("s3a", "s3n", "S3A"):
        found, path = options(translated(URI.replace("s3a", scheme)))
        assert path == "bucket/models/a b"
        assert (found["region"], found["scheme"], found["endpoint_override"]) == ("eu-west-3", "https", "")


@pytest.mark.parametrize(
    ("endpoint", "ssl", "scheme"),
    [
        ("https://minio:9000/", None, "https"),
        ("minio:9000", "false", "http"),
        ("http://minio:9000", "true", "http"),
    ],
)
def test_endpoint(endpoint, ssl, scheme):
    settings = {"fs.s3a.endpoint": endpoint} | ({"fs.s3a.connection.ssl.enabled": ssl} if ssl else {})
    found, _ = options(translated(**settings))
    assert (found["endpoint_override"], found["scheme"]) == ("minio:9000", scheme)


@pytest.mark.parametrize("provider", [None, SIMPLE, f"software.Unknown,{SIMPLE}", SIMPLE.rpartition(".")[2]])
def test_keys_are_taken_and_hidden_in_what_is_shown(provider):
    settings = KEYS | ({"fs.s3a.aws.credentials.provider": provider} if provider else {})
    uri = translated(**settings)
    found, _ = options(uri)
    assert (found["access_key"], found["secret_key"]) == ("AKIA/KEY", "s3cr/t+@")
    assert "s3cr" not in filesystems.redact(uri)
    assert "AKIA" not in filesystems.redact(uri)


@pytest.mark.parametrize(
    "settings",
    [KEYS | {"fs.s3a.aws.credentials.provider": "com.example.Own"}, {"fs.s3a.access.key": "AKIA"}],
)
def test_hosts_search_where_the_settings_have_no_keys(settings):
    assert translated(**settings) == "s3://bucket/models/a%20b?region=eu-west-3"


@pytest.mark.parametrize(
    "uri", ["s3://bucket/x?region=us-east-1", "s3://key:secret@bucket/x", "s3://key:sec/ret@bucket/x"]
)
def test_what_a_uri_says_itself_wins(uri):
    assert translated(uri, **KEYS) == uri


def test_without_a_session_the_error_says_what_to_write(monkeypatch):
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    assert hadoop.pyarrow_uri(URI) == URI
    assert "Write 's3://bucket/models/a%20b?region=...'" in check_destination(URI)
