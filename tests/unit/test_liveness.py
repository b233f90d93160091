"""Who is alive, by a clock of the test's; which failure is the cause is what ``simulation/`` plays."""

from tfos_ml.common.timeouts import PAUSE_SECONDS
from tfos_ml.driver.liveness import Liveness


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
