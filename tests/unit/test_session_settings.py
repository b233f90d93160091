"""The settings of tfos_ml in a Spark session, and the page that lists them."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tfos_ml.common.session_settings import SETTINGS, SPOOL_MEMORY, parse_bytes
from tfos_ml.errors import ClusterConfigError

PAGE = Path(__file__).parents[2] / "docs/reference/settings.rst"
WRONG = {"number": "x", "ports": "2-1", "seconds": "-1", "seconds_or_none": "soon", "size": "lots", "scored_by": "me"}


def session(**conf):
    return SimpleNamespace(conf=SimpleNamespace(get=lambda name, default: conf.get(name, default)))


def test_the_page_has_all_of_them():
    assert set(re.findall(r"^``(spark\.tfos_ml\.\w+)``", PAGE.read_text(), re.M)) == {str(one) for one in SETTINGS}


def test_what_is_not_set_has_its_default_and_what_is_wrong_is_an_error_that_names_it():
    for setting in SETTINGS:
        assert setting.of(session()) == setting.of(session(**{setting.name: " "})) == setting.default
        text = WRONG.get(setting.parse.__name__)
        if text is not None:
            with pytest.raises(ClusterConfigError, match=f"{setting}={text} "):
                setting.of(session(**{setting.name: text}))


def test_sizes_are_written_as_in_spark():
    for text, size in {"4g": 4 << 30, "512 m": 512 << 20, "2GB": 2 << 30, "7": 7}.items():
        assert SPOOL_MEMORY.of(session(**{SPOOL_MEMORY.name: text})) == size
    assert parse_bytes("3", "m") == 3 << 20
