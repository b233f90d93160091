"""What pyarrow needs to know of Hadoop's configuration: where the driver's paths lead, and stores of S3."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from tfos_ml.common.redact import redact
from tfos_ml.common.sessions import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HADOOP_S3 = ("s3a", "s3n")
"""Hadoop's names for S3."""
_PREFIX = "fs.s3a."
_PROVIDER, _TOKEN = "aws.credentials.provider", "session.token"
_KEYS = "access.key", "secret.key"
_READ = (*_KEYS, _TOKEN, _PROVIDER, "endpoint", "endpoint.region", "connection.ssl.enabled")
_OF_TOKENS = "TemporaryAWSCredentialsProvider"
_OF_KEYS = {"SimpleAWSCredentialsProvider", _OF_TOKENS}

Settings = Callable[[str], str | None]


def default_fs(spark: SparkSession) -> str:
    """The default filesystem of the Spark cluster; on Spark Connect, where it is not known, that of the host."""
    if is_connect(spark):
        return "file:///"
    fs: str = spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///")
    return fs


def driver_places(spark: SparkSession) -> dict[str, Any]:
    """The driver's working directory, user and home, for :func:`tfos_ml.protocol.paths.absolute_path`."""
    user = getpass.getuser() if is_connect(spark) else spark.sparkContext.sparkUser()
    return {"working_dir": os.getcwd(), "user": user, "home": os.path.expanduser("~")}


def pyarrow_uri(uri: str, settings: Settings | None = None) -> str:
    """A path or URI as :func:`tfos_ml.common.filesystems.open_uri` takes it on any host.

    Relative paths are in the working directory. URIs of S3 get region, endpoint and keys of Hadoop's `settings`, by
    default of the SparkContext; without one, as on Spark Connect, there are none, and the URI stays as it is.
    """
    if ":/" not in uri:
        return os.path.abspath(uri)
    if not _is_s3(uri):
        return uri
    settings = settings or _settings_of_context()
    return uri if settings is None else s3_uri(uri, settings)


def _settings_of_context() -> Settings | None:
    try:
        from pyspark import SparkContext
    except ImportError:  # a client of Spark Connect alone
        return None
    context = SparkContext._active_spark_context
    if context is None:
        return None
    hadoop = context._jsc.hadoopConfiguration()

    def setting(name: str) -> str | None:
        value = hadoop.getPassword(name)  # of a credential file, too
        return None if value is None else "".join(value)

    return setting


def store_settings() -> dict[str, str]:
    """Settings of the SparkContext that :func:`pyarrow_uri` reads, for processes that have none.

    They include settings of single buckets, except secrets of a credential file.
    """
    settings = _settings_of_context()
    if settings is None:
        return {}
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    given = context._jsc.hadoopConfiguration().getPropsWithPrefix(_PREFIX)
    names = [_PREFIX + name for name in _READ]
    names += [_PREFIX + name for name in given if name.startswith("bucket.") and name.endswith(_READ)]
    values = {name: settings(name) for name in names}
    return {name: value for name, value in values.items() if value}


def s3_uri(uri: str, setting: Settings) -> str:
    """A URI of S3 as ``s3://`` with region, endpoint and keys of Hadoop's settings; other URIs unchanged.

    A ``s3://`` that has keys or parameters of its own stays as it is. Where the settings name no keys, each host
    searches for credentials as Amazon's libraries do.
    """
    if not _is_s3(uri):
        return uri
    parts = urlsplit(uri)
    has_keys = redact(uri) != uri
    if parts.scheme.lower() == "s3" and (has_keys or "@" in parts.netloc or parts.query):
        return uri

    def of_bucket(name: str) -> str | None:
        return setting(f"{_PREFIX}bucket.{parts.netloc}.{name}") or setting(_PREFIX + name)

    user, token = ("", None) if has_keys else _credentials(of_bucket)
    options = {"region": of_bucket("endpoint.region"), **_endpoint(of_bucket), "session_token": token}
    query = urlencode({name: value for name, value in options.items() if value})
    return f"s3://{user}{parts.netloc}{parts.path}" + f"?{query}" * bool(query)


def _is_s3(uri: str) -> bool:
    return uri.partition(":")[0].lower() in (*HADOOP_S3, "s3")


def _endpoint(setting: Settings) -> dict[str, str]:
    scheme, _, host = (setting("endpoint") or "").rpartition("://")
    if not host:
        return {}
    encrypted = (setting("connection.ssl.enabled") or "true").lower() != "false"
    return {"endpoint_override": host.rstrip("/"), "scheme": scheme or ("https" if encrypted else "http")}


def _credentials(setting: Settings) -> tuple[str, str | None]:
    """User and password for the URI, and a session token; empty if hosts are to search for them."""
    kinds = {name.strip().rpartition(".")[2] for name in (setting(_PROVIDER) or "").split(",") if name.strip()}
    access, secret = map(setting, _KEYS)
    if not (access and secret) or (kinds and not kinds & _OF_KEYS):
        return "", None
    token = setting(_TOKEN) if not kinds or _OF_TOKENS in kinds else None
    return f"{quote(access, safe='')}:{quote(secret, safe='')}@", token


def s3_advice(uri: str) -> str:
    """What to write instead of Hadoop's name for a place in S3."""
    instead = "s3://" + redact(uri).partition("://")[2]
    return (
        f"Write '{instead}?region=...' (and &endpoint_override=host:port&scheme=http, for a store that is not "
        "Amazon's); the credentials are those of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or of the hosts."
    )
