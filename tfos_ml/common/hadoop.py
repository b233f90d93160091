"""What Hadoop's configuration says that pyarrow does not know: where the driver's paths lead, and ``s3a://``."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from tfos_ml.common.redact import redact
from tfos_ml.common.sessions import is_connect
from tfos_ml.errors import DestinationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HADOOP_S3 = ("s3a", "s3n")
_PREFIX = "fs.s3a."
_PROVIDER, _TOKEN = "aws.credentials.provider", "session.token"
_KEYS = "access.key", "secret.key"
_OF_KEYS = ("SimpleAWSCredentialsProvider",)
_OF_AMAZON = (  # what pyarrow finds by itself, as Amazon's libraries do
    "EnvironmentVariableCredentialsProvider",
    "IAMInstanceCredentialsProvider",
    "InstanceProfileCredentialsProvider",
    "EC2ContainerCredentialsProviderWrapper",
    "ContainerCredentialsProvider",
    "ProfileCredentialsProvider",
    "ProfileAWSCredentialsProvider",
    "WebIdentityTokenFileCredentialsProvider",
    "DefaultAWSCredentialsProviderChain",
    "DefaultCredentialsProvider",
)

Settings = Callable[[str], str | None]


def default_fs(spark: SparkSession) -> str:
    """The default filesystem of the Spark cluster; that of the host on Spark Connect, where it is not known."""
    if is_connect(spark):
        return "file:///"
    fs: str = spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///")
    return fs


def driver_places(spark: SparkSession) -> dict[str, Any]:
    """The driver's working directory, user and home, for :func:`tfos_ml.protocol.paths.absolute_path`."""
    user = getpass.getuser() if is_connect(spark) else spark.sparkContext.sparkUser()
    return {"working_dir": os.getcwd(), "user": user, "home": os.path.expanduser("~")}


def pyarrow_uri(uri: str) -> str:
    """A URI as ``pyarrow.fs`` understands it: ``s3a://`` with the settings of the SparkContext; others as they are.

    Without a SparkContext, as on Spark Connect, there are no settings, and the URI stays as it is. Raises
    ``DestinationError`` if the settings name something that pyarrow does not have.
    """
    if urlsplit(uri).scheme.lower() not in _HADOOP_S3:
        return uri
    try:
        from pyspark import SparkContext
    except ImportError:  # a client of Spark Connect alone
        return uri
    context = SparkContext._active_spark_context
    if context is None:
        return uri
    hadoop = context._jsc.hadoopConfiguration()

    def setting(name: str) -> str | None:
        value = hadoop.getPassword(name)  # of a credential file, too
        return None if value is None else "".join(value)

    return s3_uri(uri, setting)


def s3_uri(uri: str, setting: Settings) -> str:
    """An ``s3a://`` URI as ``s3://`` with region, endpoint and keys of Hadoop's settings; others as they are.

    Raises ``DestinationError`` if the settings name credentials that pyarrow cannot get; says what to write instead.
    """
    parts = urlsplit(uri)
    if parts.scheme.lower() not in _HADOOP_S3:
        return uri

    def of_bucket(name: str) -> str | None:
        return setting(f"{_PREFIX}bucket.{parts.netloc}.{name}") or setting(_PREFIX + name)

    options = {"region": of_bucket("endpoint.region"), **_endpoint(of_bucket)}
    query = urlencode({name: value for name, value in options.items() if value})
    return f"s3://{_keys(uri, of_bucket)}{parts.netloc}{parts.path}" + f"?{query}" * bool(query)


def _endpoint(setting: Settings) -> dict[str, str]:
    scheme, _, host = (setting("endpoint") or "").rpartition("://")
    if not host:
        return {}
    encrypted = (setting("connection.ssl.enabled") or "true").lower() != "false"
    return {"endpoint_override": host.rstrip("/"), "scheme": scheme or ("https" if encrypted else "http")}


def _keys(uri: str, setting: Settings) -> str:
    """User and password of the URI, empty if Amazon's own search is to find them."""
    named = [name.strip() for name in (setting(_PROVIDER) or "").split(",") if name.strip()]
    kinds = [name.rpartition(".")[2] for name in named]
    if setting(_TOKEN):
        raise _unknown(
            uri, f"{_PREFIX}{_TOKEN} is set, which has no place in a URI: set AWS_SESSION_TOKEN on all hosts"
        )
    access, secret = map(setting, _KEYS)
    if access and (not kinds or set(kinds) & set(_OF_KEYS)):
        if not secret:
            raise _unknown(uri, f"{_PREFIX}access.key is set, and {_PREFIX}secret.key is not set")
        return f"{quote(access, safe='')}:{quote(secret, safe='')}@"
    if kinds and not set(kinds) & {*_OF_AMAZON, *_OF_KEYS}:
        raise _unknown(uri, f"{_PREFIX}{_PROVIDER}={','.join(named)} is known to Hadoop alone")
    return ""


def _unknown(uri: str, why: str) -> DestinationError:
    return DestinationError(f"{redact(uri)!r} cannot be opened: {why}. {s3_advice(uri)}")


def s3_advice(uri: str) -> str:
    """What to write instead of Hadoop's name for a place in S3."""
    instead = "s3://" + redact(uri).partition("://")[2]
    return (
        f"Write '{instead}?region=...' (and &endpoint_override=host:port&scheme=http, for a store that is not "
        "Amazon's); the credentials are those of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or of the hosts."
    )
