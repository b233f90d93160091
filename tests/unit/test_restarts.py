"""Which failures a fit is begun again after; preemptions and their limits are in ``simulation/``."""

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


def test_an_elastic_fit_goes_on_after_each_loss_with_progress_and_thrice_without():
    policy, lost = RestartPolicy(max_restarts=0, is_elastic=True), errors.NodeLostError("gone")
    assert all(policy.decide(lost, has_progressed=True).restart for _ in range(20))
    assert [policy.decide(lost).restart for _ in range(4)] == [True, True, True, False]
    policy = RestartPolicy(max_restarts=0, is_elastic=True)
    assert not policy.decide(errors.TrainFnError("mine"), has_progressed=True).restart
    assert policy.decide(errors.TrainFnError("worker 1 has ended", is_collateral=True)).restart
