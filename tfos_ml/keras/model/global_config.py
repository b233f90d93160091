"""The settings of Keras under which a program makes and trains its models, on their way to other processes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfos_ml.keras import privates


@dataclass(frozen=True)
class GlobalConfig:
    """What ``keras.config`` has."""

    floatx: str
    epsilon: float
    image_data_format: str
    dtype_policy: Mapping[str, Any] | None  # its configuration; None if there is none: it follows `floatx`

    @classmethod
    def current(cls, default: GlobalConfig | None = None) -> GlobalConfig | None:
        """What this thread trains with; None if the program has not imported Keras, and so has set nothing.

        Keras keeps the policy by thread, and searches fit in threads of their own. One without a policy has that of
        `default`.
        """
        keras: Any = sys.modules.get("keras")
        if not hasattr(keras, "config"):
            return None
        config, policy = keras.config, privates.global_dtype_policy()
        if policy is not None:
            serialized = keras.dtype_policies.serialize(policy)
        else:
            serialized = None if default is None else default.dtype_policy
        return cls(config.floatx(), config.epsilon(), config.image_data_format(), serialized)

    def apply(self) -> None:
        """Make it that of this process, and the policy that of this thread."""
        import keras

        keras.config.set_floatx(self.floatx)
        keras.config.set_epsilon(self.epsilon)
        keras.config.set_image_data_format(self.image_data_format)
        if self.dtype_policy is not None:
            keras.config.set_dtype_policy(keras.dtype_policies.deserialize(dict(self.dtype_policy)))
