import itertools

import pytest

from tfos_ml.errors import ParamError
from tfos_ml.protocol.cluster_template import cluster_spec, make_template, tf_config


def expected_jobs(size, num_ps, master, evaluator):
    """The job names by rank, or None where nobody is left to train."""
    jobs = num_ps * ["ps"] + [master] * bool(master) + ["evaluator"] * evaluator
    workers = size - len(jobs)
    return jobs + workers * ["worker"] if workers >= 0 and (workers or master) else None


CASES = list(itertools.product(range(1, 7), range(7), [None, "chief", "master"], [False, True]))
VALID = [case for case in CASES if expected_jobs(*case)]
INVALID = [case for case in CASES if not expected_jobs(*case)]


def ranks_of(template, *jobs):
    return tuple(n.rank for n in template.nodes if n.job_name in jobs)


def test_rows_go_to_who_runs_the_training_program_or_evaluates():
    for case in VALID:
        _, num_ps, master, _ = case
        template = make_template(*case)
        assert [n.job_name for n in template.nodes] == expected_jobs(*case), case
        assert template.nodes[template.chief_rank].label == f"{master or 'worker'}:0", case
        coordinator = [master] if num_ps and master else ["chief", "master", "worker"]
        assert template.feed_ranks == ranks_of(template, *coordinator), case
        evaluators = ranks_of(template, "evaluator")
        assert template.evaluator_rank == (evaluators[0] if evaluators else None), case
        assert template.validation_ranks == (evaluators or template.feed_ranks), case


def test_every_address_is_in_the_cluster_spec_and_tf_config_keeps_the_evaluator_apart():
    for case in VALID:
        template = make_template(*case)
        addresses = [f"host{n.rank}:{2000 + n.rank}" for n in template.nodes]
        spec = cluster_spec(template, addresses)
        training = {job: tasks for job, tasks in spec.items() if job != "evaluator"}
        for node in template.nodes:
            assert spec[node.job_name][node.task_index] == addresses[node.rank], case
            assert tf_config(template, node.rank, addresses) == {
                "cluster": {"evaluator": [addresses[node.rank]]} if node.job_name == "evaluator" else training,
                "task": {"type": node.job_name, "index": node.task_index},
            }, case


def test_a_cluster_that_trains_nothing_is_refused_with_its_values_and_a_size_that_works():
    for size, *roles in INVALID:
        with pytest.raises(ParamError, match=rf"clusterSize={size}.*numPS={roles[0]}") as caught:
            make_template(size, *roles)
        make_template(int(str(caught.value).rstrip(".").rsplit(" ", 1)[1]), *roles)
