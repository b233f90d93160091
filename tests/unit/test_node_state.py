"""What becomes of a node: one by one, in clusters played by one thread, and under any events in any order.

That every cluster ends, whatever its processes do, is what ``simulation/`` plays.
"""

import random
from collections import Counter

import pytest
from node_tasks import make_task

from tfos_ml import errors
from tfos_ml.agent import node_events as e
from tfos_ml.agent.node_identity import identity_of
from tfos_ml.agent.node_state import UNFINISHED, NodeState, Phase, ProcessState
from tfos_ml.common.timeouts import CULPRIT_SECONDS, FAILED_SECONDS
from tfos_ml.protocol import messages as m
from tfos_ml.protocol.addresses import ControlAddress
from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.protocol.codec import encode_text
from tfos_ml.protocol.control_messages import Broken, Ending, ProgressAnswer
from tfos_ml.protocol.failure import Failure
from tfos_ml.protocol.grace_periods import GracePeriod, GracePeriods

JOIN, HEARTBEAT, LEASE = 10.0, 30.0, 20.0
OWN = Failure(errors.TrainFnError, "the train function raised")
COLLATERAL = Failure(errors.TrainFnError, "a collective broke", collateral=True)
CONTROL = ControlAddress("grpc://127.0.0.1:1", "t")
TIMEOUTS = GracePeriods(worker=3.0, server=1.0, evaluator=2.0)


def make_state(template=None, rank=0, is_standalone=False, control=CONTROL):
    template = template or make_template(1)
    task = make_task(
        template=template, grace_periods=TIMEOUTS, heartbeat_timeout=HEARTBEAT, control=control, lease=LEASE
    )
    return NodeState(identity_of(task, rank, "127.0.0.1"), JOIN, is_standalone)


class Nodes:
    """All nodes of a cluster, which have met; each has one row more than its rank. The clock stands unless told."""

    def __init__(self, template, is_standalone=False, control=CONTROL):
        self.states = [make_state(template, rank, is_standalone, control) for rank in range(template.size)]
        self.sent = [[] for _ in self.states]
        self.failures = [None] * len(self.states)
        self._mine = [None] * len(self.states)
        self.now = 0.0
        for rank in range(template.size):
            self.handle(rank, e.NodesMet())
            self.handle(rank, e.RowsCounted(m.RowCounts("AAAA", rows={"train": rank + 1})))
        self.tick()

    def handle(self, rank, event):
        for effect in self.states[rank].handle(event, self.now):
            match effect:
                case e.SendToProcess():
                    self.sent[rank].append(effect.message)
                case e.Exchange():
                    assert self._mine[rank] is None
                    self._mine[rank] = encode_text(effect.message)
                case e.Fail():
                    self.failures[rank] = effect.failure
        if all(mine is not None for mine in self._mine):
            answers, self._mine = self._mine, [None] * len(self.states)
            for other in range(len(self.states)):
                self.handle(other, e.Exchanged(answers))

    def tick(self, seconds=0.0):
        """Let time pass; several exchanges may follow one another."""
        self.now += seconds
        for _ in range(4):
            for rank in range(len(self.states)):
                self.handle(rank, e.Tick(rank + 1, 0.0))

    def end(self, *ranks):
        for rank in ranks:
            self.handle(rank, m.Returned())
            self.handle(rank, e.ProcessExited(0))
            self.handle(rank, e.InputOver())
        self.tick()

    def last(self):
        return [sent[-1] if sent else None for sent in self.sent]

    def phases(self):
        return [state.phase for state in self.states]


@pytest.fixture
def workers():
    return Nodes(make_template(3))


@pytest.fixture
def with_helper():
    """Ranks: a parameter server, the chief, a worker that works by itself."""
    return Nodes(make_template(3, num_ps=1, master_node="chief"))


class TestExchanges:
    def test_all_get_the_row_counts_of_all(self, workers):
        expected = m.Agreement({f"worker:{i}": m.RowCounts("AAAA", rows={"train": i + 1}) for i in range(3)})
        assert workers.last() == [expected] * 3

    def test_all_pass_a_barrier_that_all_have_reached(self, workers):
        for rank in range(3):
            workers.handle(rank, m.BarrierReached("start"))
        workers.tick()
        assert workers.last() == [m.BarrierPassed("start", None)] * 3

    def test_a_barrier_that_one_has_not_reached_says_who_is_where(self, workers):
        workers.handle(0, m.BarrierReached("start"))
        workers.handle(1, m.BarrierReached("end"))
        workers.end(2)
        assert "'worker:1': \"is at barrier 'end'\", 'worker:2': 'has ended'" in workers.last()[0].error
        assert "'worker:0': \"is at barrier 'start'\", 'worker:2': 'has ended'" in workers.last()[1].error

    def test_the_cluster_is_done_when_all_have_ended(self, workers):
        workers.end(0, 1)
        assert workers.phases() == [Phase.RUNNING] * 3
        workers.end(2)
        assert workers.last() == [m.ClusterDone()] * 3
        assert [state.total_rows for state in workers.states] == [6] * 3
        assert workers.phases() == [Phase.ENDED] * 3

    def test_servers_wait_for_helpers_that_still_work(self, with_helper):
        with_helper.end(1)
        assert isinstance(with_helper.last()[2], m.ClusterDone)
        assert with_helper.phases() == [Phase.DRAINING] * 3
        assert isinstance(with_helper.last()[0], m.Agreement)
        with_helper.end(2)
        assert with_helper.last() == [m.ClusterDone()] * 3
        assert all(state.is_over for state in with_helper.states)

    def test_a_process_that_ended_before_its_rows_came_says_so(self):
        state = make_state()
        state.handle(e.NodesMet(), 0.0)
        state.handle(m.Returned(), 0.0)
        state.handle(e.ProcessExited(0), 0.0)
        assert state.handle(e.Tick(0, None), 0.0) == [e.Exchange(m.RowCounts(why="has ended"))]


PS, CHIEF, EVALUATOR, WORKER = range(4)


class TestGrace:
    @pytest.mark.parametrize(("rank", "seconds"), [(PS, 1.0), (EVALUATOR, 2.0), (WORKER, 3.0)])
    def test_a_passive_node_is_ended_when_nothing_is_left_for_it_and_its_grace_is_over(self, rank, seconds):
        nodes = Nodes(make_template(4, num_ps=1, master_node="chief", eval_node=True))
        nodes.tick(100.0)
        if rank != WORKER:
            nodes.end(WORKER)
        nodes.end(CHIEF)
        nodes.tick(seconds - 0.1)
        assert nodes.states[rank].process is ProcessState.RUNS
        nodes.tick(0.2)
        assert nodes.states[rank].process is ProcessState.ENDED_WELL
        assert (nodes.states[rank].ended_at_work is None) is (rank == PS)

    def test_one_that_only_serves_has_none(self, with_helper):
        with_helper.handle(0, m.Heartbeat(serves=True))
        with_helper.handle(2, m.Heartbeat(serves=True))
        with_helper.handle(0, e.InputOver())
        with_helper.handle(2, e.InputOver())
        with_helper.end(1)
        assert with_helper.phases() == [Phase.ENDED] * 3
        assert [state.ended_at_work for state in with_helper.states] == [None] * 3

    def test_servers_of_a_program_stay_until_it_shuts_the_cluster_down(self):
        nodes = Nodes(make_template(2, num_ps=1), is_standalone=True)
        nodes.end(1)
        nodes.handle(0, e.DriverSeen(ProgressAnswer(False), 0.0, False))
        nodes.tick(100.0)
        assert nodes.states[0].process is ProcessState.RUNS
        nodes.handle(
            0, e.DriverSeen(ProgressAnswer(False, ending=Ending(GracePeriod(7.0, "grace_secs=7"))), 0.0, False)
        )
        nodes.tick(6.9)
        assert nodes.states[0].process is ProcessState.RUNS
        nodes.tick(0.2)
        assert nodes.states[0].process is ProcessState.ENDED_WELL


def failure_of(effects):
    return next((effect.failure for effect in effects if isinstance(effect, e.Fail)), None)


class TestProcess:
    @pytest.mark.parametrize(
        ("sent", "returncode", "code", "signal_name", "text"),
        [
            ((), 3, 3, None, "the process exited with code 3"),
            ((), -11, None, "SIGSEGV", "the process was ended by SIGSEGV"),
            ((OWN,), 1, 1, None, "the train function raised"),
            ((OWN,), 0, 0, None, "the train function raised"),
            ((OWN, m.Returned()), 0, 0, None, "the train function raised"),
            ((), 0, 0, None, UNFINISHED),
        ],
    )
    def test_a_failure_of_its_own_is_due_at_once(self, sent, returncode, code, signal_name, text):
        nodes = Nodes(make_template(2))
        for message in sent:
            nodes.handle(0, message)
        nodes.handle(0, e.ProcessExited(returncode))
        nodes.tick()
        failure = nodes.failures[0]
        assert (failure.exit_code, failure.signal, failure.message) == (code, signal_name, text)
        assert nodes.states[0].broken_at is None

    def test_the_closing_report_and_code_0_are_success(self):
        state = make_state()
        state.handle(m.Returned(), 0.0)
        state.handle(e.ProcessExited(0), 0.0)
        assert (state.process, failure_of(state.handle(e.Tick(0, None), 0.0))) == (ProcessState.ENDED_WELL, None)

    @pytest.mark.parametrize(("sent", "returncode"), [((COLLATERAL,), 1), ((), -6)], ids=["said so", "SIGABRT"])
    def test_what_may_be_collateral_is_due_once_the_driver_says_so(self, sent, returncode):
        nodes = Nodes(make_template(2))
        for message in sent:
            nodes.handle(0, message)
        nodes.handle(0, e.ProcessExited(returncode))
        nodes.tick(6.0)
        assert nodes.failures[0] is None
        assert nodes.states[0].broken(nodes.now) == Broken(6.0, HEARTBEAT + CULPRIT_SECONDS)
        nodes.handle(0, e.DriverSeen(ProgressAnswer(False, counts=True), 0.0, False))
        nodes.tick()
        assert nodes.failures[0] is not None

    def test_what_may_be_collateral_is_due_after_the_culprit_must_have_been_found_if_there_is_no_driver(self):
        nodes = Nodes(make_template(2), control=None)
        nodes.handle(0, COLLATERAL)
        nodes.handle(0, e.ProcessExited(1))
        nodes.tick(HEARTBEAT + CULPRIT_SECONDS - 0.1)
        assert nodes.failures[0] is None
        nodes.tick(0.2)
        assert nodes.failures[0].message == COLLATERAL.message

    def test_a_node_without_others_has_no_collateral_failures(self):
        nodes = Nodes(make_template(1))
        nodes.handle(0, COLLATERAL)
        nodes.handle(0, e.ProcessExited(1))
        nodes.tick()
        assert nodes.failures[0].message == COLLATERAL.message

    @pytest.mark.parametrize("failure", [COLLATERAL, OWN], ids=["collateral", "own"])
    def test_a_helper_that_breaks_when_the_chief_has_ended_is_no_failure_and_one_that_fails_is(
        self, with_helper, failure
    ):
        with_helper.handle(1, m.Returned())
        with_helper.handle(1, e.ProcessExited(0))
        with_helper.tick()
        with_helper.handle(2, failure)
        with_helper.handle(2, e.ProcessExited(1))
        with_helper.tick()
        if failure is OWN:
            assert with_helper.failures[2].message == OWN.message
        else:
            assert with_helper.failures == [None] * 3
            assert "failed after the chief had ended" in with_helper.states[2].ended_at_work

    @pytest.mark.parametrize(("sent", "seconds"), [(OWN, FAILED_SECONDS), (m.Returned(), HEARTBEAT)])
    def test_a_process_whose_train_function_has_ended_must_end_too(self, sent, seconds):
        nodes = Nodes(make_template(2))
        nodes.handle(0, sent)
        nodes.tick(seconds - 0.1)
        assert nodes.states[0].process is ProcessState.RUNS
        assert nodes.states[0].is_failing == (sent is OWN)
        nodes.tick(0.2)
        if sent is OWN:
            assert nodes.failures[0].message == OWN.message
        else:
            assert nodes.states[0].process is ProcessState.ENDED_WELL
            assert "had not ended 30 s after its train function had returned" in nodes.states[0].ended_at_work

    @pytest.mark.parametrize(
        ("event", "error", "text"),
        [
            (e.Tick(0, HEARTBEAT + 0.1), errors.NodeExitError, "no sign of life for 30 s (stopped, or stuck in C"),
            (e.ProcessExited(None), errors.NodeExitError, "closed its channel but does not end"),
            (e.Orphaned(), errors.NodeLostError, "the Spark executor or task that the node belongs to is gone"),
            (e.DriverSeen(ProgressAnswer(True), 0.0, False), errors.FitCancelledError, "asked the nodes to stop"),
            (e.DriverSeen(ProgressAnswer(False), 0.0, True), errors.NodeLostError, "refuses connections"),
            (e.DriverSeen(ProgressAnswer(False), LEASE + 1, False), errors.NodeLostError, "not answered for 20 s"),
        ],
    )
    def test_other_failures_are_due_at_once(self, event, error, text):
        failure = failure_of(make_state().handle(event, 0.0))
        assert failure.error is error
        assert text in failure.message

    def test_a_driver_that_never_answered_has_not_gone_unless_the_node_needs_it(self):
        unheard = e.DriverSeen(None, LEASE + 1, False)
        assert make_state().handle(unheard, 0.0) == []
        assert failure_of(make_state(is_standalone=True).handle(unheard, 0.0)).error is errors.NodeLostError

    def test_nodes_that_do_not_meet_give_up(self):
        state = make_state()
        assert state.handle(e.Tick(0, 0.0), JOIN) == []
        assert failure_of(state.handle(e.Tick(0, 0.0), JOIN + 0.1)).error is errors.ReservationTimeoutError


TEMPLATES = [
    make_template(1),
    make_template(3),
    make_template(3, num_ps=1),
    make_template(4, num_ps=1, master_node="chief", eval_node=True),
]


def random_event(draw, size):
    """Any event, of any content, whether or not it can come now."""
    answer = ProgressAnswer(
        draw.random() < 0.01,
        draw.random() < 0.5,
        draw.choice([None, None, Ending(), Ending(GracePeriod(1.0, "limit"))]),
    )
    counts, status = encode_text(m.RowCounts("AAAA")), [encode_text(m.NodeStatus()), encode_text(m.NodeStatus(rows=3))]
    return draw.choice(
        [
            lambda: e.NodesMet(),
            lambda: e.RowsCounted(m.RowCounts("AAAA")),
            lambda: e.InputOver(),
            lambda: e.Exchanged([counts] * size),
            lambda: e.Exchanged([draw.choice([*status, encode_text(m.NodeStatus(barrier="b"))]) for _ in range(size)]),
            lambda: e.Exchanged([status[1]] * size),
            lambda: m.Heartbeat(draw.random() < 0.3),
            lambda: m.BarrierReached("b"),
            lambda: m.Returned(),
            lambda: draw.choice([OWN, COLLATERAL]),
            lambda: e.ProcessExited(draw.choice([0, 0, 0, 1, -6, -9, None])),
            lambda: e.DriverSeen(draw.choice([None, answer]), draw.choice([0.0, 0.0, 0.0, LEASE + 1]), False),
            lambda: e.Tick(3, draw.choice([0.0, 0.0, 0.0, None, HEARTBEAT + 1])),
            lambda: e.Tick(3, 0.0),
        ]
    )()


def is_possible(event, state):
    """Whether the other side may send this now: answers are of the exchange under way."""
    if isinstance(event, e.Exchanged):
        is_counts = "RowCounts" in event.answers[0]
        return state._in_exchange and is_counts is (state.phase is Phase.JOINED)
    return state.phase is Phase.CLAIMED or not isinstance(event, e.NodesMet)


@pytest.mark.parametrize("seed", range(2))
def test_whatever_comes_in_whatever_order_the_promises_hold(seed):
    """A node's end is final, never a success without the closing report, and its exchanges come one by one."""
    draw, ends = random.Random(seed), Counter()
    for _ in range(1_500):
        template = draw.choice(TEMPLATES)
        rank = draw.randrange(template.size)
        state = make_state(template, rank, is_standalone=draw.random() < 0.3)
        now, in_exchange, has_returned, phases = 0.0, False, False, []
        graces, is_active = set(), state._member.is_active
        for _ in range(60):
            event = random_event(draw, template.size)
            if not is_possible(event, state):
                continue
            now += draw.choice([0.0, 0.1, 1.0])
            before, was_ended = state.phase, state.phase is Phase.ENDED
            since, process = dict(state.since), state.process
            effects = state.handle(event, now)
            if was_ended:
                assert (effects, state.phase, state.process) == ([], Phase.ENDED, process)
                continue
            phases.append(state.phase)
            assert state.phase >= before
            assert all(state.since[phase] == at for phase, at in since.items())  # a grace begins once
            assert process is not ProcessState.ENDED_WELL or state.process is ProcessState.ENDED_WELL
            has_returned = has_returned or isinstance(event, m.Returned)
            in_exchange = in_exchange and not isinstance(event, e.Exchanged)
            for effect in effects:
                if isinstance(effect, e.Exchange):
                    assert not in_exchange
                    in_exchange = True
            failed = failure_of(effects)
            assert failed is None or (state.phase is Phase.ENDED and effects[-1].failure is failed)
            if is_active and state.process is ProcessState.ENDED_WELL:
                assert has_returned
            if (idle := state._idle_since()) is not None:
                graces.add(idle)
        assert len(graces) <= 1
        ends[(state.phase, is_active, failed is None)] += 1
    assert ends[(Phase.ENDED, True, True)] > 0
