"""The members after a failure, and the equality that joining nodes need."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hogwild.cluster.launch import Launch, own_run
from hogwild.cluster.members import Proposal, Standing, decide, differences
from hogwild.errors import UsageError


@st.composite
def failures(draw: st.DrawFn) -> tuple[int, list[int], dict[int, Standing], list[int]]:
    """A round that fails: its number, the members, what those have written who could, and who had buffered it. Nobody
    passes the barrier before all have all sums."""
    members = list(range(draw(st.integers(1, 6))))
    number = draw(st.integers(1, 5))
    buffered = draw(st.lists(st.sampled_from(members), unique=True))
    passed = draw(st.lists(st.sampled_from(members), unique=True)) if len(buffered) == len(members) else []
    heard = draw(st.lists(st.sampled_from(members), unique=True, min_size=1))
    gone = draw(st.lists(st.sampled_from(heard), unique=True, max_size=len(heard) - 1))
    standings = {
        node: Standing(
            committed=number if node in passed else number - 1,
            buffered=number if node in buffered else draw(st.sampled_from([number - 1, max(0, number - 2)])),
            is_gone=node in gone,
        )
        for node in heard
    }
    return number, members, standings, passed


@given(failures())
def test_what_one_node_that_is_heard_has_committed_all_that_are_left_take(
    failure: tuple[int, list[int], dict[int, Standing], list[int]],
) -> None:
    number, members, standings, passed = failure
    found = decide(members, standings)
    assert set(found.members) == {node for node, standing in standings.items() if not standing.is_gone}
    assert found.take == (number if set(passed) & standings.keys() else number - 1)
    for node in found.members:  # whoever has not committed it has its sums
        assert found.take in (standings[node].committed, standings[node].buffered)


@given(failures(), st.randoms(use_true_random=False))
def test_the_decision_depends_on_what_was_written_and_not_on_its_order(
    failure: tuple[int, list[int], dict[int, Standing], list[int]], dice: object
) -> None:
    _, members, standings, _ = failure
    items = list(standings.items())
    dice.shuffle(items)  # type: ignore[attr-defined]
    assert decide(members, dict(items)) == decide(members, standings)


def test_a_node_without_the_sums_of_a_committed_round_cannot_go_on_with_the_others() -> None:
    standings = {0: Standing(4, 4), 1: Standing(3, 4), 2: Standing(3, 3)}
    assert decide([0, 1, 2], standings) == Proposal((0, 1), 4)


def test_a_difference_names_the_node_the_field_and_both_values() -> None:
    job = {"train.epochs": 3, "optimizer.init_args.lr": 0.1}
    facts = {
        0: {"version": "a", "job": json.dumps(job), "parameters": "w: f32 [1]\nb: f32 [2]"},
        1: {"version": "a", "job": json.dumps(job | {"train.epochs": 5}), "parameters": "w: f32 [1]\nb: f32 [3]"},
        2: {"version": "b", "job": json.dumps(job), "parameters": "w: f32 [1]"},
    }
    found = differences(facts)
    assert "node 1: train.epochs is 5, on node 0 it is 3" in found
    assert "node 1: parameters b is f32 [3], on node 0 it is f32 [2]" in found
    assert "node 2: version is b, on node 0 it is a" in found
    assert differences({0: facts[0], 3: facts[0]}) == []


BY_TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "h", "MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": "7",
}  # fmt: skip


def test_a_node_is_what_torchrun_says_and_nothing_else() -> None:
    assert Launch.of("torchrun", BY_TORCHRUN) == Launch(1, 2, "x", "h", 29500)
    assert Launch.of("none", {}) is None
    assert Launch.of("none", {**BY_TORCHRUN, "WORLD_SIZE": "1"}) is None
    assert Launch.of("none", {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}) is None  # of an allocation, not of a step


@pytest.mark.parametrize(
    ("engine", "environment", "code"),
    [
        ("torchrun", {}, "cluster/not-started"),
        ("none", BY_TORCHRUN, "cluster/not-wanted"),
        ("none", {"WORLD_SIZE": "2", "RANK": "0"}, "cluster/not-wanted"),  # of another launcher
        ("none", {"OMPI_COMM_WORLD_SIZE": "2"}, "cluster/not-wanted"),  # mpirun
        ("none", {"WORLD_SIZE": "1", "SLURM_STEP_NUM_TASKS": "4"}, "cluster/not-wanted"),  # srun
        ("torchrun", {**BY_TORCHRUN, "LOCAL_WORLD_SIZE": "2"}, "cluster/per-node"),
    ],
)
def test_job_file_and_torchrun_must_fit_together(engine: str, environment: dict[str, str], code: str) -> None:
    with pytest.raises(UsageError) as raised:
        Launch.of(engine, environment)
    assert raised.value.code == code


def test_nodes_have_their_own_places_in_one_run_directory(tmp_path) -> None:  # type: ignore[no-untyped-def]
    one = Launch.of("torchrun", BY_TORCHRUN)
    assert one is not None
    run = tmp_path / "run"
    assert one.run_of(run, None) == (run / "node-1", None)
    (run / "node-1").mkdir(parents=True)
    (run / "node-1" / "resolved.yaml").touch()
    assert one.run_of(run, None) == (None, run / "node-1")  # torchrun starts nodes again with the same command
    assert own_run(run, BY_TORCHRUN) == run / "node-1"
    assert own_run(run, {}) == run
    with pytest.raises(UsageError, match="--run-dir"):
        one.run_of(None, None)
