import pytest

from tfos_ml.driver.snapshot import spark_path
from tfos_ml.protocol.paths import absolute_path

ME = "driver-user"
PLACES = {"working_dir": "/work", "user": ME, "home": "/home/driver-user"}
SCHEMES = [
    "hdfs://nn:8020/a",
    "hdfs:///a",
    "viewfs://c/a",
    "viewfs:///a",
    "file:///a",
    "s3a://b/a",
    "gs://b/a",
    "abfs://c@h/a",
    "wasbs://c@h/a",
    "hdfs:/a",
]


@pytest.mark.parametrize("uri", SCHEMES)
@pytest.mark.parametrize("default_fs", ["hdfs://nn:8020", "file:///"])
def test_uris_stay_as_they_are(uri, default_fs):
    assert absolute_path(uri, default_fs, **PLACES) == uri


@pytest.mark.parametrize("uri", ["file:///my%20rows/a", "file:/my%20rows/a", "FILE:///my%20rows/a"])
@pytest.mark.parametrize("default_fs", ["hdfs://nn:8020", "file:///"])
def test_a_quoted_uri_of_a_local_file_is_its_path(uri, default_fs):
    assert absolute_path(uri, default_fs, **PLACES) == "/my rows/a"


@pytest.mark.parametrize(
    ("uri", "sparks"),
    [
        ("/my rows/a", "file:///my rows/a"),
        ("/my%20rows/a", "file:///my%20rows/a"),
        ("s3://key:word@bucket/my%20rows/?region=x", "s3a://bucket/my rows"),
        ("hdfs://nn/my%20rows/a", "hdfs://nn/my rows/a"),
        ("hdfs:///rows", "hdfs:///rows"),
    ],
)
def test_spark_gets_the_name_that_pyarrow_takes_a_uri_for(uri, sparks):
    assert spark_path(uri) == sparks


@pytest.mark.parametrize(
    ("default_fs", "root"),
    [
        ("hdfs://nn:8020", "hdfs://nn:8020"),
        ("hdfs://nn:8020/", "hdfs://nn:8020"),
        ("hdfs:///", "hdfs://"),
        ("hdfs://", "hdfs://"),
        ("viewfs:///", "viewfs://"),
        ("viewfs://cluster/", "viewfs://cluster"),
    ],
)
@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/a/b", "/a/b"),
        ("a/b", f"/user/{ME}/a/b"),
        ("a/", f"/user/{ME}/a/"),
        ("~/a", f"/user/{ME}/a"),
        ("~", f"/user/{ME}"),
    ],
)
def test_paths_are_put_on_the_default_filesystem(default_fs, root, path, place):
    assert absolute_path(path, default_fs, **PLACES) == root + place


@pytest.mark.parametrize("default_fs", ["s3a://bucket", "s3a://bucket/", "gs://bucket"])
@pytest.mark.parametrize(("path", "place"), [("/a", "/a"), ("a/b", "/a/b"), ("~/a", "/a")])
def test_object_stores_have_no_homes(default_fs, path, place):
    assert absolute_path(path, default_fs, **PLACES) == default_fs.rstrip("/") + place


@pytest.mark.parametrize("default_fs", ["file:///", "file:/"])
@pytest.mark.parametrize(
    ("path", "place"),
    [("/a/b", "/a/b"), ("a/b", "/work/a/b"), ("a/", "/work/a/"), ("~/a", f"/home/{ME}/a"), ("~", f"/home/{ME}")],
)
def test_local_paths_are_those_of_the_driver(default_fs, path, place):
    assert absolute_path(path, default_fs, **PLACES) == place
