"""Tags each MLflow run with its Spark application. MLflow finds this module by its entry point."""

from __future__ import annotations

import sys
from typing import Any

from mlflow.tracking.context.abstract_context import RunContextProvider

APPLICATION_TAG, ADDRESS_TAG = "spark.applicationId", "spark.uiAddress"


class SparkApplicationContext(RunContextProvider):
    """Tags runs that are started while a Spark session is active.

    The tags are ``spark.applicationId``, and ``spark.uiAddress`` if the driver serves its UI. A Spark Connect client
    sets only the first.
    """

    def in_context(self) -> bool:
        """Whether this process has a Spark session; does not import Spark."""
        return _active_session() is not None

    def tags(self) -> dict[str, str]:
        """The tags."""
        from tfos_ml.common.sessions import is_connect

        session = _active_session()
        if session is None:
            return {}
        if is_connect(session):
            return {APPLICATION_TAG: session.conf.get("spark.app.id")}
        context = session.sparkContext
        address = {} if context.uiWebUrl is None else {ADDRESS_TAG: context.uiWebUrl}
        return {APPLICATION_TAG: context.applicationId, **address}


def _active_session() -> Any:
    sql = sys.modules.get("pyspark.sql")
    return sql.SparkSession.getActiveSession() if sql is not None else None
