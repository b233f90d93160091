"""MLflow: an MLflow flavor for models of tfos_ml, and MLflow runs for fits.

=================  ==============================================================
``autolog``        logs every fit to a run, with metrics while it trains
``log_model``,     write a ``TFModel`` as an MLflow model, to be served, loaded
``save_model``     as a pyfunc, or used as a Spark UDF; serving needs no Spark
``load_model``     loads an MLflow model as a ``TFModel``
=================  ==============================================================

Examples
--------
>>> import mlflow, tfos_ml.mlflow                                       # doctest: +SKIP
>>> tfos_ml.mlflow.autolog()                                              # doctest: +SKIP
>>> model = Pipeline(stages=[assembler, KerasEstimator(...)]).fit(df)     # doctest: +SKIP
>>> run = mlflow.last_active_run()                                        # doctest: +SKIP

Or without autologging:

>>> with mlflow.start_run():                                            # doctest: +SKIP
...     model = estimator.fit(df)
...     info = tfos_ml.mlflow.log_model(model, name="model")
>>> tfos_ml.mlflow.load_model(info.model_uri).transform(df)               # doctest: +SKIP
>>> mlflow.pyfunc.load_model(info.model_uri).predict(pandas_df)           # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfos_ml.mlflow.autologging import autolog
    from tfos_ml.mlflow.flavor import FLAVOR_NAME, load_model, log_model, save_model
    from tfos_ml.mlflow.pyfunc import _load_pyfunc

__all__ = ["FLAVOR_NAME", "_load_pyfunc", "autolog", "load_model", "log_model", "save_model"]
_MODULES = {"autolog": "autologging", "_load_pyfunc": "pyfunc"}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, because MLflow imports ``run_context`` while MLflow itself is imported."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tfos_ml.common.optional_packages import needed_by

    with needed_by(f"{__name__}.{name}"):
        return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'flavor')}"), name)
