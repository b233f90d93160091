import numpy as np

from tfos_ml.keras.probe.varied_rows import varied


def test_rows_with_few_and_with_many_labels_are_chosen():
    labels = np.zeros((1000, 4), "f")
    labels[700:, 0] = 1
    labels[[123, 456, 789]] = 1
    chosen = varied((np.ones((1000, 2), "f"), labels), 8)
    assert len(chosen) == 8
    assert labels[chosen[:3]].sum() == 0
    assert set(chosen[-3:]) == {123, 456, 789}


def test_padding_counts_where_labels_are_alike():
    tokens = np.ones((100, 5), np.int64)
    tokens[40:43, 2:] = 0
    assert set(varied(({"tokens": tokens}, np.arange(1.0, 101.0)), 8)[:3]) == {40, 41, 42}


def test_few_rows_are_all_chosen_and_text_is_passed_over():
    assert sorted(varied(np.array([b"a", b"b", b"c"], object), 8)) == [0, 1, 2]


def test_a_worker_without_rows_gives_none():
    assert len(varied((np.zeros((0, 4), "f"), np.zeros(0)), 8)) == 0
