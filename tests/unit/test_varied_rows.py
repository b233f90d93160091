import numpy as np

from tfos_ml.keras.probe.varied_rows import varied


def test_rows_with_few_and_with_many_labels_or_words_are_chosen():
    labels = np.zeros((1000, 4), "f")
    labels[700:, 0] = 1
    labels[[123, 456, 789]] = 1
    chosen = varied((np.ones((1000, 2), "f"), labels), 8)
    assert len(chosen) == 8
    assert labels[chosen[:3]].sum() == 0
    assert set(chosen[-3:]) == {123, 456, 789}
    tokens = np.ones((100, 5), np.int64)
    tokens[40:43, 2:] = 0
    assert set(varied(({"tokens": tokens}, np.arange(1.0, 101.0)), 8)[:3]) == {40, 41, 42}
    assert len(varied((np.zeros((0, 4), "f"), np.zeros(0)), 8)) == 0
