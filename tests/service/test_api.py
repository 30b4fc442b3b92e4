"""The API of a real service: what the page does with a job, and that a restart of the service interrupts nobody."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hogwild.cli import main
from hogwild.config.locate import default_config
from hogwild.errors import ConflictError, NotFoundError
from tests.helpers.jobs import RUN_PY
from tests.helpers.processes import PATIENCE_S, wait_for
from tests.helpers.service import LONG, SMALL, Service, serving

pytestmark = pytest.mark.processes
API = "/api/v1"
THREE = ("train.procs=0", "train.epochs=3", "evaluate.every_epochs=1", "checkpoint.every_updates=90")
JOB = default_config("digits").read_text()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("api")) as made:
        yield made.start()


@pytest.fixture(scope="module")
def done(service: Service) -> dict[str, Any]:
    """A job of three epochs that has ended."""
    row = service.submit(*THREE)
    return service.wait_for_state(row["id"], "succeeded")


def ask(service: Service, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Return status and content of an answer."""
    with opened(service, method, path, body) as answer:
        content = answer.read()
    is_json = "json" in (answer.headers["content-type"] or "")
    return answer.status, json.loads(content) if is_json else content


@contextlib.contextmanager
def opened(service: Service, method: str, path: str, body: object = None, **headers: str) -> Iterator[HTTPResponse]:
    where = service.state.connection()
    given = {"Authorization": f"Bearer {where['token']}", "Content-Type": "application/json", **headers}
    connection = HTTPConnection("127.0.0.1", where["port"], timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request(method, path, None if body is None else json.dumps(body), given)
        yield connection.getresponse()


def test_a_job_goes_on_from_a_checkpoint_of_another_that_may_be_deleted(service: Service) -> None:
    old = service.submit(*THREE)
    old = service.wait_for_state(old["id"], "succeeded")
    _, listed = ask(service, "GET", f"{API}/jobs/{old['id']}/checkpoints")
    first = listed[-1]
    assert listed[0]["is_latest"] and listed[0]["epoch"] == 3 and first["updates"] < old["updates"]
    path, given = f"{API}/jobs/{old['id']}/checkpoints/{{}}/resume", {"id": "0123456789ab"}
    asked = [ask(service, "POST", path.format(first["name"]), given)[0] for _ in range(2)]
    assert asked == [201, 201]  # the same job
    longer = {"id": "0123456789ac", "overrides": ["train.epochs=4", "queue.priority=3"]}
    status, row = ask(service, "POST", path.format(listed[0]["name"]), longer)
    assert (status, row["priority"], row["overrides"][-2:]) == (201, 3, longer["overrides"])
    status, problem = ask(service, "POST", path.format(first["name"]), {"overrides": ["train.epochs=0"]})
    assert (status, problem["error_code"]) == (422, "config/out-of-range")
    service.client.delete(old["id"])
    new = service.wait_for_state("0123456789ab", "succeeded", "failed")
    assert (new["error"], new["metrics"], new["attempt"]) == (None, old["metrics"], 1)
    _, events = ask(service, "GET", f"{API}/jobs/{new['id']}/events")
    resume = next(one for one in events if one["event"] == "resume")
    assert (resume["checkpoint"], resume["updates"]) == (first["name"], first["updates"])
    _, curves = ask(service, "GET", f"{API}/jobs/{new['id']}/metrics")
    assert [one["updates"] for one in curves["evaluations"]] == [90, 180, 270]
    new = service.wait_for_state(longer["id"], "succeeded", "failed")
    assert (new["error"], new["updates"]) == (None, 360)


def test_a_model_is_exported_as_a_file(service: Service, done: dict[str, Any]) -> None:
    from safetensors import deserialize

    _, listed = ask(service, "GET", f"{API}/jobs/{done['id']}/checkpoints")
    with opened(service, "GET", f"{API}/jobs/{done['id']}/checkpoints/{listed[0]['name']}/export") as answer:
        assert "attachment" in (answer.headers["content-disposition"] or "")
        assert [name for name, _ in deserialize(answer.read())]
    status, problem = ask(service, "GET", f"{API}/jobs/{done['id']}/checkpoints/update-000000001/export")
    assert (status, problem["error_code"]) == (404, "export/no-checkpoint")


@pytest.mark.parametrize(
    "path",
    [
        "log?of=../supervisor",
        "log?of=supervisor.log",
        "log?worker=9999",
        "checkpoints/..%2f..%2f..%2ftoken/export",
        "checkpoints/latest/export",
        "..%2f..%2ftoken",
        "../../../../token",
    ],
)
def test_no_path_leads_out_of_a_run(service: Service, done: dict[str, Any], path: str) -> None:
    status, problem = ask(service, "GET", f"{API}/jobs/{done['id']}/{path}")
    assert status in (404, 422), problem
    assert "/" in problem["error_code"]


@pytest.mark.whole
def test_a_running_job_answers_requests_and_another_does_not(service: Service, done: dict[str, Any]) -> None:
    live = service.running(*LONG, "log.every_s=0.2")
    path = f"{API}/jobs/{live['id']}/requests"
    status, answer = ask(service, "POST", path, {"ask": "stacks"})
    assert (status, answer["answer"]) == (200, "done")
    assert answer["text"].startswith("supervisor\n")
    status, answer = ask(service, "POST", path, {"ask": "resize", "procs": 2})
    assert (status, answer["answer"]) == (200, "train.procs: 0 has no workers")
    status, answer = ask(service, "POST", path, {"ask": "resize", "cores": [60_000]})
    assert (status, answer["error_code"]) == (422, "service/too-much")
    status, answer = ask(service, "POST", f"{API}/jobs/{done['id']}/requests", {"ask": "checkpoint"})
    assert (status, answer["error_code"]) == (409, "service/wrong-state")
    service.client.cancel(live["id"], now=True)


def test_rows_are_predicted_by_a_running_job_and_by_no_other(service: Service, done: dict[str, Any]) -> None:
    live = service.running("train.procs=1", "train.epochs=100000", "data.val=null", "checkpoint.every_updates=100")
    path, rows = f"{API}/jobs/{live['id']}/predict", [[[0.5] * 64, [0.25] * 64]]
    status, answer = ask(service, "POST", path, {"inputs": rows})
    assert status == 200, answer
    assert len(answer["columns"]["predicted"]) == 2 and len(answer["columns"]) == 11
    status, later = ask(service, "POST", path, {"inputs": rows, "raw": True, "consistent": True})
    assert status == 200, later
    assert {*later["columns"]} == {f"output_{k}" for k in range(10)} and later["updates"] >= answer["updates"]
    for given, code in [
        ({}, "usage/contradiction"),
        ({"inputs": rows, "text": "a"}, "usage/contradiction"),
        ({"inputs": [[[1.0, 2.0]]]}, "model/forward-failed"),
        ({"inputs": rows, "dtypes": ["float32", "int64"]}, "usage/bad-value"),
        ({"text": "a,b\n1,2\n"}, "usage/no-input"),
        ({"inputs": rows, "unknown": 1}, "service/bad-request"),
    ]:
        status, problem = ask(service, "POST", path, given)
        assert (status, problem["error_code"]) == (422, code), problem
    status, problem = ask(service, "POST", f"{API}/jobs/{done['id']}/predict", {"inputs": rows})
    assert (status, problem["error_code"]) == (409, "service/wrong-state")
    service.client.cancel(live["id"], now=True)


def test_the_page_submits_a_text_and_its_files_alone(service: Service) -> None:
    _, templates = ask(service, "GET", f"{API}/templates")
    chosen = next(one for one in templates if one["name"] == "csv-classification")
    assert chosen["needs"] == [] and list(chosen["files"]) == ["houses.csv"]
    body = {"id": "00000000000a", "job_file": "job.yaml", "text": chosen["text"], "files": chosen["files"]}
    status, row = ask(service, "POST", f"{API}/jobs", {**body, "overrides": [*SMALL]})
    assert (status, row["state"]) in ((201, "queued"), (201, "starting"))
    assert service.wait_for_state(row["id"], "succeeded", "failed")["error"] is None


NET = "import torch\ndef net(): return torch.nn.Linear(3, 2)\n"


def project(folder: Path, *, rows: bool = True) -> str:
    """Make a folder with code and data; return the text of a job file that needs both."""
    folder.mkdir()
    (folder / "mine.py").write_text(NET)
    if rows:
        np.savez(folder / "rows.npz", x=np.ones((64, 3), np.float32), y=np.zeros(64, np.int64))
    return (
        "model: {class_path: mine.net}\ndata: {train: {class_path: hogwild.data.Npz, init_args: {path: rows.npz}}, "
        "val: {fraction: 0.25}, batch_size: 8}\ntrain: {procs: 0, epochs: 1}\n"
    )


def test_a_changed_copy_has_folder_and_code_of_its_original_and_a_folder_brings_its_own(
    service: Service, tmp_path: Path
) -> None:
    """A browser has neither: it knows the text of a job file."""
    text = project(tmp_path / "project")
    (job := tmp_path / "project" / "job.yaml").write_text(text)
    first = service.client.submit(job)
    (tmp_path / "project" / "mine.py").write_text(NET.replace("3, 2", "3, 5"))  # changed since: a copy keeps its code
    _, config = ask(service, "GET", f"{API}/jobs/{first['id']}/config")
    assert config["folder"] == first["folder"] == str(tmp_path / "project")
    body = {"job_file": "job.yaml", "text": text, "overrides": []}
    copy, other = {**body, "copy_of": first["id"]}, {**body, "from_folder": str(tmp_path / "project")}
    status, checked = ask(service, "POST", f"{API}/check", copy)
    assert (status, checked["files"]) == (200, ["mine.py", "rows.npz"]), checked
    rows = []
    for number, order in enumerate((copy, other)):
        status, row = ask(service, "POST", f"{API}/jobs", {**order, "id": f"00000000c0b{number}"})
        assert (status, row["folder"]) == (201, str(tmp_path / "project")), row
        rows.append(row)
    sources = [(service.state.job(row["id"]).files / "mine.py").read_text() for row in (first, *rows)]
    assert [source.count("3, 5") for source in sources] == [0, 0, 1]
    for row in rows:
        ended = service.wait_for_state(row["id"], "succeeded", "failed")
        assert ended["error"] is None, ended


def test_data_that_are_missing_are_told_at_submit_and_in_the_check(service: Service, tmp_path: Path) -> None:
    text = project(tmp_path / "project", rows=False)
    (job := tmp_path / "project" / "job.yaml").write_text(text)
    with pytest.raises(NotFoundError, match=r"data.train: hogwild.data.Npz: there is no rows.npz in .*/project"):
        service.client.submit(job)
    status, told = ask(service, "POST", f"{API}/check", {"text": text, "from_folder": str(tmp_path / "project")})
    assert (status, told["error_code"]) == (404, "data/not-found"), told
    (tmp_path / "elsewhere").mkdir()
    np.savez(tmp_path / "elsewhere" / "rows.npz", x=np.ones((64, 3), np.float32), y=np.zeros(64, np.int64))
    assert service.client.submit(job, data_dir=tmp_path / "elsewhere")["state"] in ("queued", "starting")
    for folder in ("nowhere", "", str(tmp_path / "gone"), str(job), f"{tmp_path}/a\0b", f"{tmp_path}/{'x' * 300}"):
        status, told = ask(service, "POST", f"{API}/check", {"text": text, "from_folder": folder})
        assert (status, told["error_code"]) == (404, "service/no-folder"), told
    for name in ("x" * 300, "a b'\\nc", "../rows.npz", f"{tmp_path}/gone.npz", "~nobody/rows.npz"):
        other = {"text": text, "overrides": [f"data.train.init_args.path={json.dumps(name)}"]}
        status, told = ask(service, "POST", f"{API}/check", {**other, "from_folder": str(tmp_path / "project")})
        assert (status, told["error_code"]) == (404, "data/not-found"), told
    (tmp_path / "project" / "r.csv").write_text("1,2\n")
    ratings = "data.train={class_path: hogwild.data.Ratings, init_args: {path: r.csv, item_features: gone.csv}}"
    other = {"text": text, "overrides": [ratings], "from_folder": str(tmp_path / "project")}
    status, told = ask(service, "POST", f"{API}/check", other)
    assert (status, told["error_code"]) == (404, "data/not-found") and "there is no gone.csv in" in f"{told}", told
    status, told = ask(service, "POST", f"{API}/check", {"text": text, "copy_of": "fedcba987654"})
    assert (status, told["error_code"]) == (404, "service/no-job"), told


def test_the_data_of_a_job_are_found_from_any_folder(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = project(tmp_path / "project")
    (job := tmp_path / "project" / "job.yaml").write_text(text)
    row = service.client.submit(job)
    assert service.wait_for_state(row["id"], "succeeded", "failed")["error"] is None
    copy = service.state.job(row["id"]).files / "rows.npz"  # of a small file
    copy.rename(copy.with_name("aside"))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    np.savez("rows.npz", x=np.ones((7, 2), np.float32), y=np.zeros(7, np.int64))  # of the same name, and another's

    def evaluated() -> str:
        environment = {**os.environ, "HOGWILD_STATE": str(service.state.path)}
        command = [sys.executable, RUN_PY, "eval", row["id"]]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert "16 samples of data.val" in evaluated()
    (tmp_path / "project").rename(tmp_path / "moved")
    copy.with_name("aside").rename(copy)
    assert "16 samples of data.val" in evaluated()


def test_a_retry_has_the_code_of_the_submission_or_with_new_code_the_present_one(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = project(tmp_path / "project")
    (job := tmp_path / "project" / "job.yaml").write_text(text)
    (module := tmp_path / "project" / "mine.py").write_text("def net(): raise RuntimeError('a mistake')\n")
    first = service.client.submit(job, ["tags=[mended, 'week 7']"])

    def ended() -> dict[str, Any]:
        return service.wait_for_state(first["id"], "succeeded", "failed")

    def command(*arguments: str) -> str:
        assert main.run([*arguments, "--state-dir", str(service.state.path)]) == 0
        return capsys.readouterr().out

    assert ended()["reason"] == "mine.net() raised RuntimeError: a mistake (mine.py:1)"
    module.write_text(NET)
    said = command("retry", first["id"])
    assert "code as it was submitted" in said and f"hogwild retry --new-code {first['number']}" in said
    assert (ended()["state"], ended()["code_at"]) == ("failed", None)
    assert f"code of {tmp_path}/project, copied again" in command("retry", "--new-code", first["id"])
    assert (ended()["state"], ended()["code_at"] is None) == ("succeeded", False)
    shown = command("show", first["id"])
    assert f"  code        of {tmp_path}/project, copied again" in shown and "  tags        mended, week 7" in shown
    assert "mended, week 7" in command("ps", "--tag", "mended", "--tag", "week 7")
    assert str(first["number"]) not in command("ps", "--tag", "others")
    for name, query, status, code in (
        (first["id"], "retry?new_code=true", 409, "service/wrong-state"),  # it has succeeded
        (first["id"], "cancel?new_code=true", 422, "usage/contradiction"),
        (service.submit(*SMALL)["id"], "retry?new_code=true", 409, "service/wrong-state"),  # it has no folder
    ):
        found, told = ask(service, "POST", f"{API}/jobs/{name}/{query}")
        assert (found, told["error_code"]) == (status, code), told
    with pytest.raises(ConflictError, match=f"^job {first['number']} is succeeded: retry needs a job that is failed"):
        service.client.retry(first["number"])


def test_prometheus_reads_the_service(service: Service, done: dict[str, Any]) -> None:
    status, text = ask(service, "GET", "/metrics")
    assert status == 200 and b'hogwild_service_jobs{state="succeeded"}' in text


class Stream:
    """A stream of the service. `last`: the newest id."""

    def __init__(self, answer: HTTPResponse) -> None:
        self.last = ""
        self._answer = answer

    @classmethod
    @contextlib.contextmanager
    def of(cls, service: Service, query: str, **headers: str) -> "Iterator[Stream]":
        with opened(service, "GET", f"{API}/stream?{query}", **headers) as answer:
            yield cls(answer)

    def next(self, wanted: str) -> dict[str, Any]:
        """Return the next event of a kind."""
        kind, text = "", ""
        while True:
            name, _, value = self._answer.readline().decode().rstrip("\n").partition(": ")
            match name:
                case "event":
                    kind = value
                case "data":
                    text = value
                case "id":
                    self.last = value
                case "" if kind == wanted:
                    return json.loads(text)


def test_a_stream_goes_on_where_it_was_after_a_restart_of_the_service(service: Service) -> None:
    row = service.running(*LONG, "log.every_s=0.2", "evaluate.every_epochs=100000")
    with Stream.of(service, f"run=nobody&run={row['id']}") as stream:
        seen = stream.next("curves")
        assert seen["reset"] and seen["id"] == row["id"]
        while not seen["train"]["updates"]:
            seen = stream.next("curves")
        last, until = stream.last, seen["train"]["updates"][-1]
    service.kill()
    service.start()
    for query, headers in ((f"run={row['id']}", {"Last-Event-ID": last}), (f"run={row['id']}&last={last}", {})):
        with Stream.of(service, query, **headers) as again:
            more = again.next("curves")
            assert not more["reset"] and more["train"]["updates"][0] > until
    with Stream.of(service, f"run={row['id']}") as fresh:
        more = fresh.next("curves")
        assert more["reset"] and more["train"]["updates"][0] <= until
    service.client.cancel(row["id"], now=True)
    wait_for("its end", lambda: not service.client.job(row["id"])["pid"])


def test_a_job_that_reads_standard_input_is_refused(service: Service) -> None:
    data = "data: {train: {class_path: hogwild.data.Follow, init_args: {path: '-', target: y, inputs: [x]}}}"
    text = f"model: {{class_path: torch.nn.Linear}}\n{data}\n"
    status, answer = ask(service, "POST", f"{API}/check", {"text": text})
    assert (status, answer["error_code"]) == (422, "data/standard-input")
    assert "a job of the service has none" in answer["detail"], answer
