"""Generated requests to every route, in this process: no error of the server, only documented answers, no effect."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CHECKS
from schemathesis.generation import GenerationMode

from hogwild.cli.jobs import search_page
from hogwild.service.app import Guard, build_app
from hogwild.service.folders import StateFolder
from hogwild.service.loop import ServiceLoop
from hogwild.service.routes_machine import Changes
from hogwild.service.schedule import Machine
from hogwild.service.store import Store
from tests.helpers.processes import IS_THOROUGH
from tests.helpers.run_records import JOB, Story, write_run
from tests.helpers.service import order

TOKEN = "t" * 43
HEADERS = {"Authorization": f"Bearer {TOKEN}", "Host": "localhost"}
EXAMPLES = 200 if IS_THOROUGH else 12
GOOD, DAMAGED, EMPTY = (f"{number:012x}" for number in (1, 2, 3))
CHECKPOINT = "update-000000600"
STREAM = "/api/v1/stream"  # it does not end


@dataclass
class Served:
    state: StateFolder
    loop: ServiceLoop
    schema: Any

    def files(self) -> dict[str, int]:
        """Return path -> size of all files of the state folder but the database's."""
        found = (file for file in self.state.path.rglob("*") if not file.name.startswith("jobs.sqlite3"))
        return {str(file): file.lstat().st_size for file in found}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service without cores, so that no job starts: one job with a run, one with a damaged run, one without."""
    state = StateFolder(tmp_path_factory.mktemp("hostile") / "state")
    state.make()
    state.lock.touch()
    store = Store(state)
    store.load()
    for number in (1, 2, 3):
        made = order(number, digest="other")
        store.add(made, store.write_aside({"job.yaml": JOB.encode()}, made))
        store.book(made.id, {"event": "ended", "state": "succeeded", "reason": "epochs", "at": 1.0})
    store.close()
    write_run(state.job(GOOD).run, Story(records=100))
    damage(write_run(state.job(DAMAGED).run, Story(records=30)))
    changes = Changes()
    loop = ServiceLoop(state, Machine(()), changes.notify, lambda: None)
    loop.load()
    loop.start()
    app = Guard(build_app(loop, changes, search_page), TOKEN)
    yield Served(state, loop, schemathesis.openapi.from_asgi("/api/v1/openapi.json", app, headers=HEADERS))
    loop.stop()


def damage(run: Path) -> None:
    """Leave of a run what a failing disk, a kill and hostile user code might."""
    (run / "resolved.yaml").write_bytes(b"\xff\x00: [")
    (run / "status.json").write_text('{"state": "running", "updates": ')
    (run / "metrics.jsonl").write_bytes(
        b'{"kind": "train", "loss": NaN, "updates": 1e999}\n[]\n\0\0\n' + b"x" * 200_000
    )
    (run / "events.jsonl").write_text('{"event": "a", "time": "b", "x": -Infinity}\n{"event"')
    (run / "logs").symlink_to("/")
    (run / "stacks").mkdir()
    os.mkfifo(run / "stacks" / "worker-0.txt")
    for manifest in run.glob("checkpoints/*/manifest.json"):
        manifest.write_text('{"files": [], "meta": 3, "created": 7}')
    (run / "checkpoints" / "latest").symlink_to("/etc/passwd")


OPERATIONS = [
    ("GET", "/api/v1/jobs"),
    ("POST", "/api/v1/jobs"),
    ("POST", "/api/v1/check"),
    ("GET", "/api/v1/jobs/{name}"),
    ("DELETE", "/api/v1/jobs/{name}"),
    ("POST", "/api/v1/jobs/{name}/{ask}"),
    ("GET", "/api/v1/jobs/{name}/search"),
    ("GET", "/api/v1/jobs/{name}/metrics"),
    ("GET", "/api/v1/jobs/{name}/events"),
    ("GET", "/api/v1/jobs/{name}/config"),
    ("GET", "/api/v1/jobs/{name}/logs"),
    ("GET", "/api/v1/jobs/{name}/log"),
    ("GET", "/api/v1/jobs/{name}/checkpoints"),
    ("GET", "/api/v1/jobs/{name}/checkpoints/{checkpoint}/export"),
    ("POST", "/api/v1/jobs/{name}/checkpoints/{checkpoint}/resume"),
    ("POST", "/api/v1/jobs/{name}/requests"),
    ("POST", "/api/v1/jobs/{name}/predict"),
    ("GET", "/api/v1/machine"),
    ("GET", "/api/v1/sparklines"),
    ("GET", "/api/v1/templates"),
    ("GET", "/metrics"),
]


def test_the_table_has_every_route(served: Served) -> None:
    raw = served.schema.raw_schema["paths"]
    there = {(method.upper(), path) for path, methods in raw.items() for method in methods}
    assert there - {("GET", STREAM)} == set(OPERATIONS)


def not_for(method: str, path: str) -> list[Any]:
    """Return the checks that do not fit: no schema says which text is a job file, or which fields go together; unknown
    parameters of a query are ignored."""
    is_free = path.endswith(("/jobs", "/check", "/requests", "/resume", "/predict", "/{ask}"))
    names = [*(["positive_data_acceptance"] if is_free else []), *(["negative_data_rejection"] * (method == "GET"))]
    return CHECKS.get_by_names(names)


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=" ".join)
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_generated_requests_get_documented_answers_and_change_nothing(
    served: Served, method: str, path: str, mode: GenerationMode
) -> None:
    before = served.files()
    names = iter(range(10**9))
    strategy = served.schema[path][method].as_strategy(generation_mode=mode)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=not IS_THOROUGH,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def ask(case: Any) -> None:
        if mode is GenerationMode.POSITIVE and "name" in case.path_parameters and method == "GET":
            case.path_parameters["name"] = (GOOD, DAMAGED, EMPTY)[next(names) % 3]
            if "checkpoint" in case.path_parameters:
                case.path_parameters["checkpoint"] = CHECKPOINT
        answer = case.call_and_validate(headers=HEADERS, excluded_checks=not_for(method, path))
        assert answer.status_code < 500, answer.content

    ask()
    assert served.files() == before
