"""Every public class of Keras is placed in ``tests/zoo``, and what the tables say of it is true."""

from __future__ import annotations

import functools
import json
import runpy
import tempfile
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import zoo
from keras_processes import plain_training, train
from keras_worker import make
from zoo.places import Exact, Told, present, public

from tfos_ml.inference.saved_model import load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore:Gradients do not exist for variables"),  # of plain Keras, behind integers
]
GROUPS, OTHERS = zoo.groups(), zoo.others()
DOCS = Path(__file__).parents[2] / "docs"
NEWEST = (3, 15)  # whose classes the tables name
VERSION = tuple(map(int, metadata.version("keras").split(".")[:2]))
APPLICATIONS = [name for name in GROUPS if name.startswith("applications-")]
COMMON = [name for name in GROUPS if name not in APPLICATIONS]
FIRST = [  # one of a kind, in make test; the others are chaos tests
    "losses-Dice",  # computed over the rows of all workers
    "optimizers-LossScaleOptimizer",  # one within another
    "callbacks-SwapEMAWeights",
]
FIRST = [name for name in FIRST if name in COMMON]
MORE = [name for name in COMMON if name not in FIRST]
SOME = COMMON[::4]  # other numbers of workers go the same way
TRAINED = {"first": {2: FIRST}, "more": {2: MORE}, "one and three": {1: SOME, 3: SOME}}


@pytest.fixture(autouse=True)
def temporary_directory(tmp_path, monkeypatch):
    """For directories that models and callbacks make."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_every_public_class_is_placed():
    for namespace, places in zoo.NAMESPACES.items():
        assert [name for name in public(namespace) if name not in places] == [], namespace


@pytest.mark.skipif(VERSION < NEWEST, reason="older versions of Keras lack some classes")
def test_every_place_is_of_a_public_class_and_the_page_says_what_the_tables_say():
    for namespace, places in zoo.NAMESPACES.items():
        assert present(dict(places), namespace).keys() == places.keys()
    page = runpy.run_path(str(DOCS / "keras_classes.py"))
    assert page["PAGE"].read_text() == page["text"]()


def test_every_exact_class_is_in_a_small_model():
    in_models = {name for group in GROUPS.values() for name in group.parts}
    for namespace in zoo.NAMESPACES.keys() - {"applications"}:
        places = present(dict(zoo.NAMESPACES[namespace]), namespace)
        assert {name for name, place in places.items() if isinstance(place, Exact)} <= in_models


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory with the weights and logs that workers of some sizes have written."""
    where = tempfile.gettempdir()

    def trained(which):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(tempfile, "tempdir", where)  # where the fork server of other tests is
            return train(TRAINED[which], tmp_path_factory.mktemp("zoo"))

    return functools.cache(trained)


@pytest.fixture(scope="module")
def reference():
    """The model and history of plain Keras for a group."""
    return functools.cache(plain_training)


@pytest.mark.parametrize("group", FIRST)
def test_two_workers_end_like_plain_keras(trained, reference, group):
    check(trained("first"), [2], reference, group)


@pytest.mark.chaos
@pytest.mark.parametrize("group", MORE)
def test_more_classes_end_like_plain_keras(trained, reference, group):
    check(trained("more"), [2], reference, group)


@pytest.mark.chaos
@pytest.mark.parametrize("group", COMMON)
def test_the_export_computes_what_plain_keras_does(trained, reference, group):
    model, _ = reference(group)
    x = make(group)[0]["x"]
    served = load(trained("first" if group in FIRST else "more") / f"{group}-2-served", "exported", "serve")(features=x)
    expected = model.predict(tf.constant(x), verbose=0)
    parts = GROUPS[group].parts
    if len(served) == 1:
        served, expected = {name: next(iter(served.values())) for name in parts}, [expected]
    outputs = dict(zip(model.output_names if len(expected) > 1 else parts, expected, strict=True))
    far = {name: float(np.abs(served[name] - values).max()) for name, values in outputs.items()}
    assert {name: by for name, by in far.items() if not by <= max(1e-4, tolerance(parts, name))} == {}


@pytest.mark.chaos
@pytest.mark.parametrize("group", SOME)
def test_one_and_three_workers_end_like_plain_keras(trained, reference, group):
    check(trained("one and three"), [1, 3], reference, group)


@pytest.mark.chaos
@pytest.mark.parametrize("group", APPLICATIONS)
def test_an_application_ends_like_in_plain_keras(reference, tmp_path, group):
    check(train({2: [group]}, tmp_path), [2], reference, group)


@pytest.mark.chaos
@pytest.mark.parametrize("family", zoo.applications.FAMILIES)
def test_the_other_members_of_a_family_have_the_same_layers(family):
    if not zoo.applications.FAMILIES[family]:
        pytest.skip("a family of one")

    def kinds(name):
        return {type(layer) for layer in zoo.applications.built(name)._flatten_layers()}

    for member in zoo.applications.FAMILIES[family].split():
        assert kinds(member) <= kinds(family), member


def tolerance(parts, name):
    place = parts.get(name)
    return place.tolerance if isinstance(place, Exact) else zoo.places.TOLERANCE


def check(directory: Path, sizes, reference, group):
    """Weights and logs of each branch; the message names the classes that differ, and by how much."""
    model, history = reference(group)
    parts = GROUPS[group].parts
    owners = owners_of(model, parts)
    for size in sizes:
        wrong: dict[str, float] = {}
        for rank in range(size):
            with np.load(directory / f"{group}-{size}-{rank}.npz") as file:
                own = [file[name] for name in file.files]
            for name, a, b in zip(owners, own, model.get_weights(), strict=True):
                note(wrong, parts, name, a.astype("f8"), b.astype("f8"))
        logs = json.loads((directory / f"{group}-{size}.json").read_text())
        assert set(logs[0]) == set(history)
        for key, values in history.items():
            name = next((n for n in parts if key.removeprefix("val_") == f"{n}_loss" or key.endswith(f"_{n}")), key)
            note(wrong, parts, name, np.array([log[key] for log in logs]), np.array(values))
        assert wrong == {}, f"{size} workers: {wrong}"


def owners_of(model, parts):
    """The class to which each weight of a model belongs."""
    if len(parts) == 1:
        return [next(iter(parts))] * len(model.weights)
    branches = [layer for layer in model.layers if layer.name in parts]
    named = {id(weight): branch.name for branch in branches for weight in branch.weights}
    return [named.get(id(weight), weight.path) for weight in model.weights]


def note(wrong, parts, name, own, expected):
    largest = max(1.0, float(np.abs(expected).max(initial=0)))
    distance = float(np.abs(own - expected).max(initial=0)) / largest
    room = max(p.tolerance for p in parts.values()) if name == "loss" or name == "val_loss" else tolerance(parts, name)
    if not distance <= room:  # nor not a number
        wrong[name] = max(wrong.get(name, 0.0), distance)


@pytest.mark.chaos
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_exact_is_told_or_refused(tmp_path, name):
    (place,) = OTHERS[name].parts.values()
    if isinstance(place, Told):
        train({2: [name]}, tmp_path)
        assert place.notice in (tmp_path / "log-2-0").read_text()
        return
    with pytest.raises(AssertionError, match=rf"ModelError: [^\n]*{place.message}"):
        train({2: [name]}, tmp_path)
