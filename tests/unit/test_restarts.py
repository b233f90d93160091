"""Which failures a fit is begun again after."""

import pytest

from tfos_ml import errors
from tfos_ml.driver.restarts import RestartPolicy

PASSING = [errors.NodeLostError, errors.NodeExitError, errors.TrainFnError, errors.InputLostError]
COMING_AGAIN = [
    errors.NonFiniteTrainingError("the loss is NaN"),
    errors.VersionMismatchError("2.18 and 2.19"),
    errors.CollectiveCallError("out of step"),
    errors.SupersededError("another fit"),
    errors.ParamError("epochs"),
    errors.DestinationError("exportDir"),
    errors.FitCancelledError("canceled"),
    KeyboardInterrupt(),
]


def test_what_may_pass_is_begun_again_as_often_as_the_user_allows():
    for kind in PASSING:
        policy = RestartPolicy(max_restarts=2)
        decisions = [policy.decide(kind("gone", role="worker", index=1, host="h")) for _ in range(3)]
        assert [d.restart for d in decisions] == [True, True, False]
        assert decisions[1].notice == "Restart 2 of 2, because a node failed: worker:1 on h: gone"


def test_what_would_come_again_is_not():
    for error in COMING_AGAIN:
        policy = RestartPolicy(max_restarts=2)
        assert not policy.decide(error).restart
        assert policy.restarts == 0


def test_a_python_daemon_that_had_ended_does_not_count_until_nodes_should_have_started(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    policy, ended = RestartPolicy(max_restarts=1, start_seconds=60), errors.PythonDaemonError("ended")
    assert all(policy.decide(ended).restart for _ in range(20))  # one for each worker that idled
    assert policy.restarts == 0
    now[0] += 61
    assert [policy.decide(ended).restart for _ in range(2)] == [True, False]


def test_an_elastic_fit_goes_on_after_each_loss_with_progress_and_thrice_without():
    policy, lost = RestartPolicy(max_restarts=0, is_elastic=True), errors.NodeLostError("gone")
    assert all(policy.decide(lost, has_progressed=True).restart for _ in range(20))
    assert [policy.decide(lost).restart for _ in range(4)] == [True, True, True, False]
    policy = RestartPolicy(max_restarts=0, is_elastic=True)
    assert not policy.decide(errors.TrainFnError("mine"), has_progressed=True).restart
    assert policy.decide(errors.TrainFnError("worker 1 has ended", is_collateral=True)).restart


@pytest.mark.parametrize(("elastic", "restarts", "allowed"), [(False, 0, 0), (False, 1, 1), (True, 0, 3), (True, 5, 5)])
def test_preemptions_count_without_progress(elastic, restarts, allowed):
    policy, told = RestartPolicy(max_restarts=restarts, is_elastic=elastic), errors.PreemptedError("told to end")
    goes_on = bool(allowed)
    assert policy.goes_on_after_preemption == goes_on
    assert [policy.decide(told, has_progressed=True).restart for _ in range(9)] == [goes_on] * 9
    assert [policy.decide(told).restart for _ in range(allowed + 1)] == [True] * allowed + [False]
