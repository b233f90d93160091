from tfos_ml.driver.snapshot import spark_path
from tfos_ml.protocol.paths import absolute_path

PLACES = {"working_dir": "/work", "user": "me", "home": "/home/me"}


def test_uris_stay_as_they_are_but_a_quoted_one_of_a_local_file_is_its_path():
    for uri in ("hdfs://nn:8020/a", "viewfs:///a", "file:///a", "s3a://b/a", "wasbs://c@h/a", "hdfs:/a"):
        assert absolute_path(uri, "file:///", **PLACES) == uri
    for uri in ("file:///my%20rows/a", "FILE:/my%20rows/a"):
        assert absolute_path(uri, "hdfs://nn:8020", **PLACES) == "/my rows/a"


def test_spark_gets_the_name_that_pyarrow_takes_a_uri_for():
    assert spark_path("/my rows/a") == "file:///my rows/a"
    assert spark_path("s3://key:word@bucket/my%20rows/?region=x") == "s3a://bucket/my rows"
    assert spark_path("hdfs://nn/my%20rows/a") == "hdfs://nn/my rows/a"


def test_paths_are_put_on_the_default_filesystem():
    for default_fs, places in {
        "hdfs://nn:8020/": ["hdfs://nn:8020/a/b", "hdfs://nn:8020/user/me/a/", "hdfs://nn:8020/user/me/a"],
        "file:///": ["/a/b", "/work/a/", "/home/me/a"],
    }.items():
        assert [absolute_path(path, default_fs, **PLACES) for path in ("/a/b", "a/", "~/a")] == places
    assert absolute_path("a/b", "s3a://bucket/", **PLACES) == "s3a://bucket/a/b"  # which has no homes
