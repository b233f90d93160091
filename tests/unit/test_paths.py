import pytest

from tfos_ml.driver.snapshot import spark_path
from tfos_ml.protocol.paths import absolute_path

ME = "driver-user"
PLACES = {"working_dir": "/work", "user": ME, "home": "/home/driver-user"}


@pytest.mark.parametrize("default_fs", ["hdfs://nn:8020", "file:///"])
def test_uris_stay_as_they_are_but_a_quoted_one_of_a_local_file_is_its_path(default_fs):
    for uri in ("hdfs://nn:8020/a", "viewfs:///a", "file:///a", "s3a://b/a", "wasbs://c@h/a", "hdfs:/a"):
        assert absolute_path(uri, default_fs, **PLACES) == uri
    for uri in ("file:///my%20rows/a", "file:/my%20rows/a", "FILE:///my%20rows/a"):
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
    ("default_fs", "root", "homes", "working_dir"),
    [
        ("hdfs://nn:8020/", "hdfs://nn:8020", "/user", f"/user/{ME}"),
        ("hdfs:///", "hdfs://", "/user", f"/user/{ME}"),
        ("viewfs://", "viewfs://", "/user", f"/user/{ME}"),
        ("file:///", "", "/home", "/work"),
        ("file:/", "", "/home", "/work"),
    ],
)
def test_paths_are_put_on_the_default_filesystem(default_fs, root, homes, working_dir):
    paths = {"/a/b": "/a/b", "a/": f"{working_dir}/a/", "~/a": f"{homes}/{ME}/a", "~": f"{homes}/{ME}"}
    for path, place in paths.items():
        assert absolute_path(path, default_fs, **PLACES) == root + place


def test_object_stores_have_no_homes():
    for path, place in {"/a": "/a", "a/b": "/a/b", "~/a": "/a"}.items():
        assert absolute_path(path, "s3a://bucket/", **PLACES) == f"s3a://bucket{place}"
