"""Where each class of ``keras.layers`` stands."""

from __future__ import annotations

import functools
import inspect
import tempfile
from typing import Any

from zoo import branches
from zoo.places import Exact, Group, NotTrained, Place, Refused, Told, exact, present

REQUIRED = {
    "units": 3,
    "filters": 3,
    "kernel_size": 2,
    "pool_size": 2,
    "output_size": 2,
    "rate": 0.3,
    "stddev": 0.3,
    "factor": 0.2,
    "height": 3,
    "width": 3,
    "height_factor": 0.2,
    "width_factor": 0.2,
}
WHERE_KNOWN = {"dropout": 0.2, "recurrent_dropout": 0.2, "value_range": (0, 1)}
SHAPES = {
    "vectors": (6,),
    "sequences": (6, 3),
    "images": (4, 4, 3),
    "volumes": (3, 3, 3, 2),
    "augmentation": (8, 8, 3),
    "recurrent": (5, 3),
    "tried": (6,),
}


def made(name: str, *args: Any, **options: Any) -> Any:
    """A layer; what its constructor requires is given by the names of its parameters."""
    import keras

    layer_class = getattr(keras.layers, name)
    parameters = inspect.signature(layer_class.__init__).parameters
    needed = [p for p, about in parameters.items() if about.default is inspect.Parameter.empty and p in REQUIRED]
    known = {p: value for p, value in WHERE_KNOWN.items() if p in parameters}
    given = {} if args else {p: REQUIRED[p] for p in needed}
    return layer_class(*args, **{**given, **known, **options})


def layer(name: str, *args: Any, **options: Any) -> Exact:
    """A layer with arguments of its own."""
    return Exact(lambda hidden: made(name, *args, **options)(hidden))


def merging(name: str, **options: Any) -> Exact:
    """A layer of two inputs."""

    def use(hidden: Any) -> Any:
        import keras

        return made(name, **options)([hidden, keras.layers.Dense(hidden.shape[-1])(hidden)])

    return Exact(use)


def twice(name: str, *args: Any, **options: Any) -> Exact:
    """Attention of a sequence to itself."""
    return Exact(lambda hidden: made(name, *args, **options)(hidden, hidden))


def cell(name: str) -> Exact:
    """A cell in an RNN."""
    return Exact(lambda hidden: made("RNN", made(name))(hidden))


def numbered(name: str, size: int, **options: Any) -> Exact:
    """A layer that gives whole numbers, which a table translates."""

    def use(hidden: Any) -> Any:
        return made("Embedding", size, 2)(made(name, **options)(hidden))

    return Exact(use)


def stacked(hidden: Any) -> Any:
    return made("RNN", made("StackedRNNCells", [made("GRUCell", 2), made("LSTMCell", 3)]))(hidden)


def renormalized(hidden: Any) -> Any:
    """Batch renormalization, which older versions of Keras do not have."""
    parameters = inspect.signature(made("BatchNormalization").__init__).parameters
    return made("BatchNormalization", **({"renorm": True, "momentum": 0.6} if "renorm" in parameters else {}))(hidden)


def mel(hidden: Any) -> Any:
    """Powers above a bound: near zero their logarithm makes rounding large."""
    options = {"fft_length": 8, "sequence_stride": 4, "num_mel_bins": 3, "sampling_rate": 80, "min_power": 0.3}
    return made("Rescaling", 0.1)(made("MelSpectrogram", **options)(made("Flatten")(hidden)))


def masked(x: Any) -> Any:
    steps = made("Rescaling", 0.1)(made("Reshape", (6, 1))(x))
    return made("GRU", 3)(made("Masking", 0.0)(steps))


def reversed_embedding(x: Any) -> Any:
    table = made("ReversibleEmbedding", branches.TOKENS, 3)
    return table(table(x), reverse=True)


def crossed(x: Any) -> Any:
    steps = made("Reshape", (6, 1))(x)
    first, second = (made("Flatten")(made("Cropping1D", crop)(steps)) for crop in ((0, 5), (1, 4)))
    return made("Embedding", 7, 2)(made("HashedCrossing", 7)((first, second)))


def saved(hidden: Any) -> Any:
    """A layer from a SavedModel."""
    import keras
    import tensorflow as tf

    class Doubled(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((None, 6))])
        def serve(self, x: Any) -> Any:
            return 2.0 * x

    directory = tempfile.mkdtemp(prefix="tfos_ml-test-")
    module = Doubled()
    tf.saved_model.save(module, directory, signatures={"serve": module.serve})
    result = keras.layers.TFSMLayer(directory, call_endpoint="serve")(hidden)
    return result["output_0"] if isinstance(result, dict) else result


def mixing(name: str) -> Refused:
    return Refused(
        "mixes each row with another row of its batch",
        "Two workers would not train this model as one does",
        lambda hidden: made(name)(hidden),
        "augmentation",
    )


def drawing(name: str, reason: str = "draws numbers for a batch as a whole") -> Told:
    return Told(
        reason,
        "draw random numbers for a batch as a whole",
        lambda hidden: made(name)(hidden),
        "augmentation",
    )


def doubled(x: Any) -> Any:
    return 2.0 * x


GROUPS: dict[str, dict[str, Exact]] = {
    "vectors": {
        **exact("ELU LeakyReLU PReLU ReLU Softmax Dense Identity InputLayer BatchNormalization LayerNormalization"),
        **exact("RMSNormalization UnitNormalization AlphaDropout Dropout GaussianDropout GaussianNoise Flatten"),
        "InputLayer": Exact(lambda hidden: hidden),  # every model has one
        "Activation": layer("Activation", "tanh"),
        **{name: merging(name) for name in exact("Add Average Concatenate Maximum Minimum Multiply Subtract")},
        "Dot": merging("Dot", axes=1),
        "GroupNormalization": layer("GroupNormalization", 3),
        "Discretization": numbered("Discretization", 3, bin_boundaries=[0.4, 0.6]),
        "Normalization": layer("Normalization", mean=[0.5] * 6, variance=[0.1] * 6),
        "Rescaling": layer("Rescaling", 2.0),
        "ActivityRegularization": layer("ActivityRegularization", l1=0.01, l2=0.1),
        "RepeatVector": layer("RepeatVector", 2),
        "Reshape": layer("Reshape", (3, 2)),
        "BatchNormalization_renorm": Exact(renormalized),
        "BatchNormalization_renewed": layer("BatchNormalization", momentum=0.5, center=False),
        "Dropout_shaped": layer("Dropout", 0.4, noise_shape=(None, 1)),
    },
    "sequences": {
        **exact("Conv1D Conv1DTranspose DepthwiseConv1D SeparableConv1D AdaptiveAveragePooling1D AdaptiveMaxPooling1D"),
        **exact("AveragePooling1D GlobalAveragePooling1D GlobalMaxPooling1D MaxPooling1D SpatialDropout1D Cropping1D"),
        **exact("UpSampling1D ZeroPadding1D"),
        "AdditiveAttention": Exact(lambda hidden: made("AdditiveAttention")([hidden, hidden])),
        "Attention": Exact(lambda hidden: made("Attention", use_scale=True)([hidden, hidden])),
        "GroupQueryAttention": twice("GroupQueryAttention", 2, 4, 2),
        "MultiHeadAttention": twice("MultiHeadAttention", 2, 2),
        "EinsumDense": layer("EinsumDense", "abc,cd->abd", output_shape=(6, 4)),
        "Permute": layer("Permute", (2, 1)),
        "TimeDistributed": Exact(lambda hidden: made("TimeDistributed", made("Dense"))(hidden)),
        "TimeDistributed_normalized": Exact(lambda hidden: made("TimeDistributed", made("BatchNormalization"))(hidden)),
        "BatchNormalization_of_steps": layer("BatchNormalization"),
        "MelSpectrogram": Exact(mel),
        "STFTSpectrogram": Exact(
            lambda hidden: made("LayerNormalization")(
                made("STFTSpectrogram", frame_length=6, frame_step=3, fft_length=8)(hidden)
            )
        ),
    },
    "images": {
        **exact("Conv2D Conv2DTranspose DepthwiseConv2D SeparableConv2D AdaptiveAveragePooling2D AdaptiveMaxPooling2D"),
        **exact(
            "AveragePooling2D GlobalAveragePooling2D GlobalMaxPooling2D MaxPooling2D SpatialDropout2D UpSampling2D"
        ),
        **exact("ZeroPadding2D CenterCrop Resizing"),
        "Cropping2D": layer("Cropping2D", 1),
        "BatchNormalization_of_images": layer("BatchNormalization"),
        "BatchNormalization_first": layer("BatchNormalization", axis=1),
    },
    "volumes": {
        **exact("Conv3D Conv3DTranspose AdaptiveAveragePooling3D AdaptiveMaxPooling3D AveragePooling3D"),
        **exact("GlobalAveragePooling3D GlobalMaxPooling3D MaxPooling3D SpatialDropout3D Cropping3D UpSampling3D"),
        **exact("ZeroPadding3D"),
    },
    "augmentation": {
        **exact("AutoContrast RandomBrightness RandomColorDegeneration RandomColorJitter"),
        **exact("RandomContrast RandomErasing RandomFlip RandomGaussianBlur"),
        **exact("RandomGrayscale RandomHue RandomInvert RandomPerspective RandomRotation RandomSaturation"),
        **exact("RandomSharpness RandomTranslation RandomZoom Solarization"),
        "ContrastLimitedAdaptiveHistogramEqualization": layer(
            "ContrastLimitedAdaptiveHistogramEqualization", tile_grid_size=(2, 2)
        ),
        "MaxNumBoundingBoxes": layer("MaxNumBoundingBoxes", 3),
        "RandomCrop": layer("RandomCrop", 8, 8),  # Keras gives the whole image where it does not train
        "RandomPosterization": layer("RandomPosterization", 4),
        "RandomShear": layer("RandomShear", 0.2, 0.2),
        "Pipeline": Exact(lambda hidden: made("Pipeline", [made("RandomFlip"), made("Rescaling", 2.0)])(hidden)),
    },
    "recurrent": {
        **exact("GRU LSTM SimpleRNN"),
        **{name: cell(name) for name in ("GRUCell", "LSTMCell", "SimpleRNNCell")},
        "RNN": cell("SimpleRNNCell"),
        "StackedRNNCells": Exact(stacked),
        "Bidirectional": Exact(lambda hidden: made("Bidirectional", made("LSTM"))(hidden)),
        "ConvLSTM1D": Exact(lambda hidden: made("ConvLSTM1D")(branches.shaped(made("Flatten")(hidden), (2, 4, 2)))),
        "ConvLSTM2D": Exact(lambda hidden: made("ConvLSTM2D")(branches.shaped(made("Flatten")(hidden), (2, 3, 3, 1)))),
        "ConvLSTM3D": Exact(
            lambda hidden: made("ConvLSTM3D")(branches.shaped(made("Flatten")(hidden), (2, 3, 3, 2, 1)))
        ),
    },
    "tokens": {
        "Embedding": layer("Embedding", branches.TOKENS, 3),
        "Embedding_masked": Exact(
            lambda x: made("GRU")(made("SpatialDropout1D")(made("Embedding", branches.TOKENS, 3, mask_zero=True)(x)))
        ),
        "Masking": Exact(masked),
        "ReversibleEmbedding": Exact(reversed_embedding),
        "CategoryEncoding": layer("CategoryEncoding", branches.TOKENS, output_mode="multi_hot"),
        "HashedCrossing": Exact(crossed),
        "Hashing": numbered("Hashing", 7, num_bins=7),
        "IntegerLookup": layer("IntegerLookup", vocabulary=list(range(1, 20)), output_mode="multi_hot"),
    },
    "words": {
        "StringLookup": layer("StringLookup", vocabulary=["red", "blue", "red green"], output_mode="multi_hot"),
        "TextVectorization": layer("TextVectorization", vocabulary=["red", "green"], output_mode="multi_hot"),
    },
    "tried": {  # a step is tried in shares before the first, as with layers of one's own
        "Lambda": layer("Lambda", doubled),
        "SpectralNormalization": Exact(lambda hidden: made("SpectralNormalization", made("Dense"))(hidden)),
        "TFSMLayer": Exact(saved),
    },
}
OTHERS: dict[str, Place] = {
    **{name: drawing(name) for name in ("AugMix", "RandAugment")},
    "RandomElasticTransform": drawing(
        "RandomElasticTransform", "puts the first image of a batch, distorted, in the place of others (Keras 3.15)"
    ),
    "MixUp": mixing("MixUp"),
    "CutMix": mixing("CutMix"),
    "Equalization": NotTrained("gives its own input while Keras builds a model, which Keras refuses; for tf.data"),
    "Layer": NotTrained("base class"),
    "Wrapper": NotTrained("base class"),
    "InputSpec": NotTrained("describes the input of a layer"),
    "JaxLayer": NotTrained("needs JAX"),
    "FlaxLayer": NotTrained("needs JAX"),
    "TorchModuleWrapper": NotTrained("needs Keras on PyTorch"),
}
PLACES: dict[str, Place] = {**{name: place for group in GROUPS.values() for name, place in group.items()}, **OTHERS}


def groups() -> list[Group]:
    """One model for each kind of input."""
    return [_group(name, present(parts, "layers")) for name, parts in GROUPS.items()]


def others() -> list[Group]:
    """A model for each layer that is refused or told of."""
    chosen = {name: place for name, place in present(OTHERS, "layers").items() if isinstance(place, (Refused, Told))}
    return [_group(place.of, {name: place}, name) for name, place in chosen.items()]


def _group(kind: str, parts: dict[str, Any], name: str = "") -> Group:
    data = functools.partial(rows, kind, list(parts))
    return Group(f"layers-{name or kind}", parts, data, functools.partial(model, kind, parts))


def rows(kind: str, names: list[str]) -> dict[str, Any]:
    return branches.data(kind, dict.fromkeys(names, "number"))


def model(kind: str, parts: dict[str, Any]) -> Any:
    """A branch for each layer: trained numbers in a shape, the layer, and a trained number."""

    def branch(name: str, place: Any, x: Any) -> Any:
        hidden = branches.shaped(x, SHAPES[kind]) if kind in SHAPES else x
        use = place.use or (lambda hidden: made(name)(hidden))
        return branches.one_number(use(hidden))

    made_branches = {name: functools.partial(branch, name, place) for name, place in parts.items()}
    return branches.compiled(branches.model(kind, made_branches), dict.fromkeys(parts, "mse"), rate=0.01)
