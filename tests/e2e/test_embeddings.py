"""The programs of docs/howto/embeddings.rst as printed, with random weights in place of those of the internet."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [pytest.mark.chaos]
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/howto/embeddings.rst").read_text()
EXPORT_TEXTS, USE_TEXTS, EXPORT_IMAGES, USE_IMAGES = [
    textwrap.dedent(block)
    for block in re.findall(r"^\.\. code-block:: python\n\n((?:    .*\n|\n)+)", PAGE, re.MULTILINE)
]
MAKE_PRESET = """
import keras_hub
letters = "abcdefghijklmnopqrstuvwxyz."
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + letter for letter in letters)]
sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16, "max_sequence_length": 512}
keras_hub.models.BertBackbone(vocabulary_size=len(words), **sizes).save_to_preset("preset")
keras_hub.models.BertTokenizer(vocabulary=words, lowercase=True).save_to_preset("preset")
"""
CHECK_TEXTS = """
texts = ["word " * (n * n % 97) for n in range(60)]
scored = embedder.transform(spark.createDataFrame([(text,) for text in texts], "text string")).collect()
alone = [embedder.predict([text])["features"][0] for text in texts]


@tf.function  # in which the tokenizer gives tensors
def together():
    first, last = tf.fill([60, 1], tokenizer.start_token_id), tf.fill([60, 1], tokenizer.end_token_id)
    return embed(tf.concat([first, tokenizer(tf.constant(texts))[:, : LONGEST - 2], last], 1))

padded = together()
import numpy as np
for row, one, plain in zip(scored, alone, padded.numpy(), strict=True):
    np.testing.assert_allclose(row.features, one, atol=1e-5)
    np.testing.assert_allclose(row.features, plain, atol=1e-5)
print("the same")
"""
MAKE_IMAGES = """
import os
import tensorflow as tf
for i, (kind, height, channels) in enumerate([("cats", 30, 3), ("cats", 300, 1), ("dogs", 224, 3), ("dogs", 50, 4)]):
    os.makedirs(f"images/{kind}", exist_ok=True)
    pixels = tf.cast(tf.random.stateless_uniform([height, 40, channels], [i, 0], 0, 256, tf.int32), tf.uint8)
    tf.io.write_file(f"images/{kind}/{i}.png", tf.io.encode_png(pixels))
    if channels != 4:
        tf.io.write_file(f"images/{kind}/{i}.jpg", tf.io.encode_jpeg(pixels))
"""
CHECK_IMAGES = """
import numpy as np
for row in embedder.transform(df).collect():
    image = keras.applications.mobilenet_v2.preprocess_input(decode(row.content)[None])
    np.testing.assert_allclose(row.embedding, network.predict(image, verbose=0)[0], atol=1e-4)
print("the same")
"""


def run(directory, *parts):
    """What a program prints, in a directory of its own."""
    (directory / "program.py").write_text("\n".join(parts))
    command = [sys.executable, "program.py"]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def replaced(program, before, after):
    assert program.count(before) == 1
    return program.replace(before, after)


@pytest.mark.skipif(importlib.util.find_spec("keras_hub") is None, reason="keras-hub is not installed")
def test_kerashub_texts(tmp_path):
    """Some calls have one text, some many; each text has the embedding that it has alone."""
    export = replaced(EXPORT_TEXTS, '"bert_small_en_uncased"', '"preset"')
    export = replaced(export, "TOKENS = 4096", "TOKENS = 300")
    shown = run(tmp_path, MAKE_PRESET, export, USE_TEXTS, CHECK_TEXTS)
    assert len(re.findall(r"^\|[\w .]+\| +[01]\.0\|$", shown, re.MULTILINE)) == 4, shown
    assert shown.splitlines()[-1] == "the same"


def test_images(tmp_path):
    export = replaced(EXPORT_IMAGES, 'weights="imagenet"', "weights=None")
    shown = run(tmp_path, MAKE_IMAGES, export, USE_IMAGES, CHECK_IMAGES)
    assert len(re.findall(r"^\| +[01]\| +[01]\.0\|$", shown, re.MULTILINE)) == 7, shown
    assert shown.splitlines()[-1] == "the same"
