"""Where each callback of ``keras.callbacks`` stands."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from typing import Any

from zoo import branches, optimizers
from zoo.places import Exact, Group, NotTrained, Place, Refused, exact, present


def in_directory(name: str) -> Callable[[Any], Any]:
    """A callback that writes a file, or a directory, of this name."""
    return lambda callback: callback(f"{tempfile.mkdtemp(prefix='tfos_ml-test-')}/{name}")


def stopping(callback: Any) -> Any:
    return callback(monitor="loss", min_delta=10.0, patience=0, restore_best_weights=True, start_from_epoch=0)


def slower(callback: Any) -> Any:
    return callback(monitor="val_loss", factor=0.5, min_delta=10.0, patience=1, cooldown=0)


def of_epochs(callback: Any) -> Any:
    return callback(lambda epoch, rate: rate * 0.5 if epoch else rate)


def changing(callback: Any) -> Any:
    """A callback that changes the logs, as those that evaluate do."""
    return callback(on_epoch_end=lambda epoch, logs: logs.update(twice=2 * logs["loss"]))


CALLBACKS: dict[str, Exact] = {
    **exact("Callback History ProgbarLogger SwapEMAWeights TerminateOnNaN"),
    "CSVLogger": Exact(in_directory("log.csv")),
    "EarlyStopping": Exact(stopping),
    "LambdaCallback": Exact(changing),
    "LearningRateScheduler": Exact(of_epochs),
    "ModelCheckpoint": Exact(in_directory("model.keras")),
    "ReduceLROnPlateau": Exact(slower),
    "TensorBoard": Exact(in_directory("logs")),
}
OTHERS: dict[str, Place] = {
    "BackupAndRestore": Refused(
        "restores one worker and not the others; modelDir does", "BackupAndRestore restores one worker"
    ),
    "CallbackList": NotTrained("holds callbacks; fit makes it"),
    "OrbaxCheckpoint": NotTrained("needs Orbax; runs on the chief"),
    "RemoteMonitor": NotTrained("needs a server; runs on the chief"),
}
PLACES: dict[str, Place] = {**CALLBACKS, **OTHERS}


def groups() -> list[Group]:
    """A model for each callback."""
    return [_group(name, place) for name, place in present(CALLBACKS, "callbacks").items()]


def _group(name: str, place: Exact) -> Group:
    return Group(
        f"callbacks-{name}",
        {name: place},
        functools.partial(rows, name, place),
        functools.partial(optimizers.model, averaging if name == "SwapEMAWeights" else branches.sgd),
    )


def averaging() -> Any:
    import keras

    return keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.5)


def rows(name: str, place: Exact) -> dict[str, Any]:
    return {**branches.data("numbers", {name: "number"}), "callbacks": functools.partial(made, name, place)}


def made(name: str, place: Exact) -> list[Any]:
    import keras

    callback = getattr(keras.callbacks, name)
    return [place.use(callback) if place.use else callback()]
