"""Where activations, initializers, regularizers, constraints and dtype policies stand: parts of Dense layers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from zoo import branches
from zoo.places import Exact, Group, NotTrained, Place, Refused, exact, present


def dense(units: int = 4, **options: Any) -> Any:
    import keras

    return keras.layers.Dense(units, **options)


def policy(name: str) -> Callable[[Any, Any], Any]:
    """Layers that compute by a policy."""
    return lambda policy, x: dense(activation="tanh", dtype=policy(name))(x)


def mapped(policy_map: Any, x: Any) -> Any:
    import keras

    name = "mapped"
    policies = policy_map(default_policy="float32")
    return keras.layers.Dense(4, "tanh", dtype=policies, name=name)(x)


def gated(activation: Any, x: Any) -> Any:
    """An activation that halves its input, for which Keras 3.7 by itself derives another shape."""
    import keras

    return keras.layers.Lambda(activation)(dense()(x))


def spectral(initializer: Any, x: Any) -> Any:
    """A kernel that is a Fourier transform."""
    import keras

    kernel = initializer("real", "hann")
    return keras.layers.Conv1D(5, 8, kernel_initializer=kernel)(keras.layers.Reshape((branches.WIDTH, 1))(x))


def quantized(policy: Any, x: Any) -> Any:
    """A layer whose kernel is not trained, between others."""
    return dense(dtype=policy("int8", "float32"))(dense(activation="tanh")(x))


def of_kernel(part: Any, x: Any) -> Any:
    return dense(activation="tanh", kernel_regularizer=part())(x)


def of_all(part: Any, x: Any) -> Any:
    return dense(activation="tanh", kernel_regularizer=part(), bias_regularizer=part(), activity_regularizer=part())(x)


RULES: dict[str, Callable[[Any, Any], Any]] = {  # what makes a branch of a class and an input
    "activations": lambda part, x: dense(activation=part)(x),
    "initializers": lambda part, x: dense(branches.WIDTH, activation="tanh", kernel_initializer=part())(x),
    "regularizers": of_all,
    "constraints": lambda part, x: dense(activation="tanh", kernel_constraint=part())(x),
    "dtype_policies": lambda part, x: dense(activation="tanh", dtype=part("float32"))(x),
}
EXACT: dict[str, dict[str, Exact]] = {
    "activations": {
        **exact("celu elu exponential gelu hard_shrink hard_sigmoid hard_silu hard_tanh leaky_relu linear"),
        **exact("log_sigmoid log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus softsign"),
        **exact("sparse_plus sparse_sigmoid sparsemax squareplus tanh tanh_shrink"),
        "threshold": Exact(lambda part, x: dense(activation=lambda h: part(h, 0.1, 0.0))(x), "tried"),
        "glu": Exact(gated, "tried"),
    },
    "initializers": {
        **exact("GlorotNormal GlorotUniform HeNormal HeUniform Identity LecunNormal LecunUniform Ones Orthogonal"),
        **exact("RandomNormal RandomUniform TruncatedNormal VarianceScaling Zeros"),
        "Constant": Exact(lambda part, x: dense(activation="tanh", kernel_initializer=part(0.1))(x)),
        "STFT": Exact(spectral),
    },
    "regularizers": {
        **exact("L1 L1L2 L2"),
        "OrthogonalRegularizer": Exact(of_kernel),
        "L1L2_both": Exact(lambda part, x: dense(activity_regularizer=part(0.01, 0.02))(x)),
    },
    "constraints": {
        **exact("NonNeg UnitNorm"),
        "MaxNorm": Exact(lambda part, x: dense(kernel_constraint=part(0.5))(x)),
        "MinMaxNorm": Exact(lambda part, x: dense(kernel_constraint=part(0.1, 0.5))(x)),
    },
    "dtype_policies": {
        **exact("DTypePolicy FloatDTypePolicy"),
        "DTypePolicyMap": Exact(mapped),
        "DTypePolicy_float64": Exact(policy("float64")),
        **{
            f"DTypePolicy_{name}": Exact(policy(name), tolerance=2e-2, reason="rounded to 16 bits, in another order")
            for name in ("mixed_bfloat16", "mixed_float16", "bfloat16")
        },
        "QuantizedDTypePolicy": Exact(quantized),
    },
}
OF_QUANTIZED = NotTrained("of layers that Keras has quantized for inference")
OTHERS: dict[str, dict[str, Place]] = {
    "activations": {},
    "initializers": {"Initializer": NotTrained("base class")},
    "regularizers": {"Regularizer": NotTrained("base class")},
    "constraints": {"Constraint": NotTrained("base class")},
    "dtype_policies": {
        "AWQDTypePolicy": OF_QUANTIZED,
        "GPTQDTypePolicy": OF_QUANTIZED,
        "Int4DTypePolicy": OF_QUANTIZED,
        "QuantizedFloat8DTypePolicy": Refused(
            "its scales follow the largest value of a batch, which several workers do not combine",
            "compute in float8",
            lambda part, x: dense(dtype=part("float8", "float32"))(x),
        ),
    },
}
PLACES: dict[str, dict[str, Place]] = {name: {**parts, **OTHERS[name]} for name, parts in EXACT.items()}


def groups() -> list[Group]:
    """A model for each namespace, and one for what is tried before the first step."""
    found = []
    for namespace, places in EXACT.items():
        parts = present(places, namespace)
        for of in ("", "tried"):
            chosen = {name: place for name, place in parts.items() if place.of == of}
            if chosen:
                found.append(group(namespace, chosen, f"{namespace}-{of}".rstrip("-")))
    return found


def others() -> list[Group]:
    """A model for each part that is refused."""
    found = []
    for namespace, places in OTHERS.items():
        for name, place in present(places, namespace).items():
            if isinstance(place, Refused):
                found.append(group(namespace, {name: place}, f"{namespace}-{name}"))
    return found


def group(namespace: str, parts: dict[str, Any], name: str) -> Group:
    """A branch for each part of a namespace."""
    data = functools.partial(branches.data, "numbers", dict.fromkeys(parts, "number"))
    return Group(name, parts, data, functools.partial(model, namespace, parts))


def model(namespace: str, parts: dict[str, Any]) -> Any:
    def branch(name: str, place: Any, x: Any) -> Any:
        import importlib

        module = importlib.import_module(f"keras.{namespace}")
        part = getattr(module, name if hasattr(module, name) else name.split("_")[0])
        return branches.one_number((place.use or RULES[namespace])(part, x))

    made = {name: functools.partial(branch, name, place) for name, place in parts.items()}
    return branches.compiled(branches.model("numbers", made), dict.fromkeys(parts, "mse"), rate=0.01)
