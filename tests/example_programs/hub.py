"""Programs on KerasHub, whose layers are neither Keras's own nor the user's; without it they are left out."""

from __future__ import annotations

import importlib.util

import numpy as np

from example_programs.data import adam, case

IS_INSTALLED = importlib.util.find_spec("keras_hub") is not None
TOKENS, LENGTH = 30, 8
SIZES = {"vocabulary_size": TOKENS, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}


def sentences(rows=37):
    """Token ids with padding, as a tokenizer of KerasHub gives them, and whether two tokens are both there."""
    random = np.random.RandomState(51)
    x = random.randint(1, TOKENS, (rows, LENGTH))
    lengths = random.randint(3, LENGTH + 1, rows)
    mask = (np.arange(LENGTH) < lengths[:, None]).astype("i4")
    segments = (np.arange(LENGTH) >= lengths[:, None] // 2).astype("i4")
    label = ((x * mask).sum(1) % 2).astype("i4")
    return {"token_ids": (x * mask).astype("i4"), "segment_ids": segments * mask, "padding_mask": mask}, label


def bert():
    """Text classification with a pretrained encoder's classes, its weights drawn here: dropout in every layer."""
    import keras
    import keras_hub

    backbone = keras_hub.models.BertBackbone(**SIZES, max_sequence_length=LENGTH, dropout=0.1)
    model = keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=None, dropout=0.1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=adam(1e-3), loss=loss, metrics=["sparse_categorical_accuracy"])
    return model


PROGRAMS = {"kerashub_classifier": (lambda: case(*sentences(), validates=True), bert)}
