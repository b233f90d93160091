"""A call to a silent node ends once the driver knows that the cluster has failed, and not before."""

from __future__ import annotations

import threading

from tfos_ml.agent.silent_node import SilentNode

DEADLINE = 10.0


def test_a_call_ends_after_the_failure_is_known():
    answers = iter([False, False, True])
    canceled = threading.Event()
    with SilentNode(lambda: next(answers), canceled.set, silence=0.01, period=0.01):
        assert canceled.wait(DEADLINE)
    assert next(answers, "all asked") == "all asked"


def test_a_call_that_ends_is_not_canceled():
    asked, canceled = threading.Event(), threading.Event()
    with SilentNode(lambda: asked.set() or False, canceled.set, silence=0.01, period=0.01):
        assert asked.wait(DEADLINE)
    assert not canceled.is_set()
