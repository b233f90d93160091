import getpass
import os

import pytest

from tfos_ml.training.paths import absolute_path

ME = getpass.getuser()
SCHEMES = [
    "hdfs://nn:8020/a",
    "viewfs://c/a",
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
    assert absolute_path(uri, default_fs, "/work") == uri


@pytest.mark.parametrize(
    ("path", "on_hdfs", "on_local"),
    [
        ("/a/b", "hdfs://nn:8020/a/b", "/a/b"),
        ("a/b", f"hdfs://nn:8020/user/{ME}/a/b", "/work/a/b"),
        ("~/a", f"hdfs://nn:8020/user/{ME}/a", os.path.expanduser("~/a")),
        ("~", f"hdfs://nn:8020/user/{ME}", os.path.expanduser("~")),
    ],
)
def test_paths_are_put_on_the_default_filesystem(path, on_hdfs, on_local):
    assert absolute_path(path, "hdfs://nn:8020", "/work") == on_hdfs
    assert absolute_path(path, "hdfs://nn:8020/", "/work") == on_hdfs
    assert absolute_path(path, "file:///", "/work") == on_local
