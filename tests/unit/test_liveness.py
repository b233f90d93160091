"""Who is alive, and whose failure is the cause, by a clock of the test's; ``simulation/`` plays both."""

from tfos_ml.common.timeouts import PAUSE_SECONDS
from tfos_ml.driver.liveness import Liveness
from tfos_ml.protocol.control_messages import Broken


def test_a_node_that_is_not_heard_of_is_silent_but_a_pause_of_the_driver_is_not_its_silence():
    now = [1000.0]
    liveness = Liveness(lambda: now[0])
    liveness.record(0, 0.0)
    liveness.record(1, 0.0)

    def silent_after(seconds):
        now[0] += seconds
        return liveness.silent({0, 1}, 10)

    assert [silent_after(1) for _ in range(3)] == [{}] * 3
    assert silent_after(1000 + PAUSE_SECONDS) == {}
    liveness.record(0, 0.0)
    assert [silent_after(1) for _ in range(7)] == [{}] * 7
    assert silent_after(1) == {1: 11.0}
    assert liveness.silent({0}, 10) == {}  # the other has gone


def test_of_two_that_broke_the_first_is_the_cause():
    """One aborts, and the sums of the other fail, for which no other node is to blame."""
    now = [1000.0]
    liveness = Liveness(lambda: now[0])
    counted = []
    for _ in range(20):
        now[0] += 0.5
        for rank, since in ((1, 1000.4), (0, 1000.0)):  # which calls first does not matter
            broken = Broken(now[0] - since, 120.0)
            liveness.record(rank, None, broken=broken)
            counted += [rank] if liveness.is_cause(rank, broken, {0, 1}) else []
    assert set(counted) == {0}
