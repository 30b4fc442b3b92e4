"""The stream and the machine, without processes: each reader gets what it lacks, and the id says up to where."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hogwild.service.routes_machine import (
    MOST_MOVES,
    Changes,
    MachineView,
    changes_of,
    exposition,
    live_and_newest,
    news_of,
    places_of,
    text_of,
)
from hogwild.service.rows import Snapshot
from hogwild.service.run_reader import Followed, FollowedRun, Place
from hogwild.service.schedule import Machine
from tests.helpers.run_records import Story, add_lines, write_run

MACHINE = Machine(((0, 4), (1, 5)), ("0",))
ONE, TWO = "0" * 12, "1" * 12


def row(job: str, state: str = "running", cores: tuple[int, ...] = (), **more: Any) -> str:
    given = {"id": job, "number": 1, "name": "x", "state": state, "cores": cores, "gpus": [], "memory": 0, **more}
    figures = dict.fromkeys(("progress", "samples_per_s", "loss", "updates", "restarts"))
    return json.dumps({"run_dir": f"/{job}", **figures, **given})


def snapshot(version: int, *rows: str) -> Snapshot:
    return Snapshot(version, {json.loads(text)["id"]: (version, text) for text in rows})


@dataclass
class Loop:
    """Has a snapshot, as the service's loop."""

    snapshot: Snapshot
    machine: Machine = MACHINE


def read(loop: Loop, runs: dict[str, FollowedRun], count: int, last: str = "") -> list[Any]:
    """Return the first events of a new stream: (event, data, id)."""

    async def collect() -> list[Any]:
        events = changes_of(loop, Changes(), MachineView(MACHINE), runs, last)  # type: ignore[arg-type]
        found = []
        async for one in events:
            found.append((one.event, json.loads(one.raw_data or ""), one.id))
            if len(found) == count:
                break
        await events.aclose()
        return found

    return asyncio.run(asyncio.wait_for(collect(), 30))


def test_a_stream_begins_with_all_jobs_the_machine_and_the_runs_that_are_looked_at(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Story(records=50))
    loop = Loop(snapshot(3, row(ONE, cores=(0, 4)), row(TWO, "queued")))
    found = read(loop, {ONE: Followed().run(run)}, 5)
    assert [event for event, _, _ in found] == ["jobs", "machine", "run", "curves", "events"]
    jobs, machine, status, curves, events = (data for _, data, _ in found)
    assert [one["id"] for one in jobs["rows"]] == [ONE, TWO]
    assert machine["cores"] == [{"cpus": [0, 4], "job": ONE}, {"cpus": [1, 5], "job": None}]
    assert (status["id"], status["status"]["state"]) == (ONE, "succeeded")
    assert (curves["reset"], len(curves["train"]["loss"]), len(curves["evaluations"])) == (True, 50, 10)
    assert events["reset"] and events["events"][0]["event"] == "start"


def test_whoever_comes_back_gets_what_follows(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Story(records=50, evaluations=0))
    loop = Loop(snapshot(3, row(ONE)))
    last = read(loop, {ONE: Followed().run(run)}, 5)[-1][2]
    add_lines(run / "metrics.jsonl", {"time": 1.0, "kind": "train", "updates": 777, "loss": 0.5})
    found = read(loop, {ONE: Followed().run(run)}, 4, last)  # as after a restart: nothing is shared
    assert [(event, data.get("reset")) for event, data, _ in found][2:] == [("run", None), ("curves", False)]
    assert found[3][1]["train"]["updates"] == [777]
    (run / "metrics.jsonl").write_text('{"kind": "train", "updates": 5}\n')
    again = read(loop, {ONE: Followed().run(run)}, 4, found[3][2])
    assert (again[3][1]["reset"], again[3][1]["train"]["updates"]) == (True, [5])


def test_a_run_that_is_not_there_yet_sends_nothing(tmp_path: Path) -> None:
    followed = Followed()
    assert list(news_of(ONE, followed.run(tmp_path / "nowhere"), {}, {})) == []
    write_run(tmp_path / "nowhere", Story(records=5))
    kinds = [kind for kind, _, _ in news_of(ONE, followed.run(tmp_path / "nowhere"), {}, {})]
    assert kinds == ["run", "curves", "events"]


def test_an_id_is_read_back_and_nonsense_is_left_out() -> None:
    places = {(ONE, "curves"): Place(2, 3, 4), (TWO, "events"): Place(6, 7)}
    assert places_of(text_of(places)) == places
    assert places_of(f"x,{ONE}.c.1.2,{ONE}.z.2.3.4,,..,{TWO}.e.6.7.1") == {(TWO, "events"): Place(6, 7)}


def test_streams_that_saw_the_same_share_the_difference() -> None:
    changes, before = Changes(), snapshot(1, row(ONE), row(TWO))
    now = Snapshot(2, {ONE: (2, row(ONE, "succeeded"))})
    text = changes.difference(before, now)
    assert changes.difference(before, now) is text
    found = json.loads(text)
    assert ([one["state"] for one in found["rows"]], found["gone"]) == (["succeeded"], [TWO])
    assert len(json.loads(changes.difference(Snapshot(), now))["rows"]) == 1


def test_moves_of_cores_are_noted_with_their_reason() -> None:
    view = MachineView(MACHINE)
    view.look(snapshot(1))
    view.look(snapshot(2, row(ONE, cores=(0, 4, 1, 5))))
    view.look(snapshot(3, row(ONE, cores=(0, 4)), row(TWO, cores=(1, 5))))
    view.look(snapshot(4, row(ONE, cores=(0, 4)), row(TWO, "succeeded")))
    view.look(snapshot(5, row(ONE, cores=(0, 4, 1, 5))))
    moves = json.loads(view.update(snapshot(6, row(ONE, cores=(1, 5)))))["moves"]
    assert [(one["from"], one["to"], one["cpus"], one["why"]) for one in moves] == [
        (None, ONE, [0, 4, 1, 5], "starts"),
        (ONE, TWO, [1, 5], "lent"),
        (TWO, None, [1, 5], "ends"),
        (None, ONE, [1, 5], "grows"),
        (ONE, None, [0, 4], "shrinks"),
    ]
    for version in range(7, 1000):
        view.look(snapshot(version, row(ONE, cores=(0, 4) if version % 2 else (1, 5))))
    assert len(json.loads(view.update(snapshot(1001)))["moves"]) == MOST_MOVES


def test_what_a_restarted_service_finds_running_is_no_move() -> None:
    view = MachineView(MACHINE)
    assert json.loads(view.update(snapshot(8, row(ONE, cores=(0, 4)))))["moves"] == []


def test_sparklines_are_of_live_jobs_and_the_newest_others() -> None:
    rows = [row(f"{number:012x}", "running" if number == 0 else "succeeded") for number in range(9)]
    assert [int(name, 16) for name, _ in live_and_newest(snapshot(1, *rows), 2)] == [8, 7, 0]


def test_figures_have_labels_that_prometheus_can_read() -> None:
    rows = [json.loads(row(ONE, cores=(0, 4), name='a"b\n', loss=0.5)), json.loads(row(TWO, "queued"))]
    found = exposition(rows, MACHINE).splitlines()
    assert 'hogwild_service_jobs{state="running"} 1' in found
    assert "hogwild_service_queue_jobs{} 1" in found
    assert "hogwild_service_cpus_used{} 2" in found
    assert f'hogwild_job_loss{{job="{ONE}",number="1",name="a\\"b\\n"}} 0.5' in found
