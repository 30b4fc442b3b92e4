"""The service as a process: jobs run, survive its death wherever it happens, and nothing of them is left."""

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from hogwild.errors import ConfigError, ConflictError, NotFoundError, ServiceError, UsageError
from hogwild.host import boot_id, lock_file, pidfd_open, start_ticks
from hogwild.service.attempts import JobProcess, entry_of
from hogwild.service.client import Client
from hogwild.service.folders import MARK as JOB_MARK
from hogwild.service.folders import StateFolder
from hogwild.service.loop import ServiceLoop
from hogwild.service.moves import Moves
from hogwild.service.schedule import Machine
from hogwild.service.states import JobRecord
from hogwild.service.store import Store
from hogwild.storage.run_files import read_json
from tests.helpers.jobs import RUN_PY, environment
from tests.helpers.processes import IS_THOROUGH, PATIENCE_S, state_of, wait_for
from tests.helpers.service import LONG, SMALL, Service, opened_store, order

pytestmark = pytest.mark.processes
ENDED = ("succeeded", "failed", "cancelled", "paused")


def run_of(service: Service, name: str) -> Path:
    return service.state.job(name).run


def starts(service: Service, name: str) -> int:
    return sum(event["event"] == "starting" for event in service.events(name))


# ---- jobs


@pytest.mark.whole
def test_a_job_runs_with_its_copied_modules_and_its_own_folder(service: Service, tmp_path: Path) -> None:
    """The module is changed after the submission: the copy counts. The data file is found beside the job file."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "mine.py").write_text(
        "import os, sys, torch\n"
        "from pathlib import Path\n"
        "def net(): return torch.nn.Linear(3, 2)\n"
        "def data():\n"
        "    from hogwild.data.locate import beside\n"
        "    assert any((place / 'table.txt').exists() for place in beside())\n"
        "    Path(__file__).with_name('seen').write_text(f'{os.getcwd()} {os.environ.get(\"SECRET\")}'\n"
        "        f' {len(os.sched_getaffinity(0))} {sys.stdin.read()!r}')\n"
        "    return torch.utils.data.TensorDataset(torch.randn(64, 3), torch.randint(2, (64,)))\n"
    )
    (folder / "table.txt").write_text("x")
    job = folder / "small.yaml"
    job.write_text(
        "model: {class_path: mine.net}\ndata: {train: {class_path: mine.data}, batch_size: 8}\n"
        "optimizer: {init_args: {lr: 0.1}}\ntrain: {procs: 1, threads: 1}\n"
    )
    blocker = service.start().submit(*LONG, "train.threads=64")  # all cores
    os.environ["SECRET"] = "kept"
    try:
        row = service.client.submit(job, ["train.epochs=2"])
    finally:
        del os.environ["SECRET"]
    assert (row["state"], row["cpus"], row["name"]) == ("queued", 1, "small")
    assert "needs 1 core" in wait_for("a reason", lambda: service.client.job(row["id"])["reason"])
    (folder / "mine.py").write_text("raise RuntimeError\n")
    service.client.cancel(blocker["id"])
    ended = service.wait_for_state(row["id"], *ENDED)
    assert (ended["state"], ended["reason"], ended["exit_status"]) == ("succeeded", "epochs", 0), ended
    seen = service.state.job(row["id"]).files / "seen"
    assert seen.read_text() == f"{os.getcwd()} None 1 ''"


NET = """import json
from pathlib import Path
import torch
HERE = Path(__file__).parent
def net(large=False):
    sizes = json.loads((HERE / "sizes.json").read_text())
    assert (HERE / "tables" / "deep" / "bytes.bin").read_bytes() == bytes(range(256))
    assert (HERE / "parts" / "names.txt").read_text() == "größe"
    if large:
        torch.load(HERE / "weights.bin")
    return torch.nn.Linear(sizes["inputs"], 2)
"""


@pytest.mark.parametrize("large", [False, True])
def test_small_files_that_a_jobs_code_opens_are_copied_and_large_ones_are_named(
    service: Service, tmp_path: Path, large: bool
) -> None:
    folder = tmp_path / "project"
    for name in ("tables/deep", "parts", "many", ".hidden"):
        (folder / name).mkdir(parents=True)
    (folder / "mine.py").write_text(NET)
    (folder / "sizes.json").write_text('{"inputs": 64}')
    (folder / "tables" / "deep" / "bytes.bin").write_bytes(bytes(range(256)))
    (folder / "parts" / "__init__.py").touch()
    (folder / "parts" / "names.txt").write_text("größe", encoding="utf-8")
    (folder / "weights.bin").write_bytes(bytes((1 << 20) + 1))
    (folder / ".hidden" / "secret").touch()
    for number in range(201):
        (folder / "many" / str(number)).touch()
    job = folder / "job.yaml"
    job.write_text(
        f"model: {{class_path: mine.net, init_args: {{large: {str(large).lower()}}}}}\n"
        f"data: {{train: {{class_path: mine.rows}}, batch_size: 8}}\ntrain: {{procs: 0, epochs: 1}}\n"
    )
    (folder / "mine.py").write_text(NET + "def rows():\n    x = torch.randn(64, 64)\n"
        "    return torch.utils.data.TensorDataset(x, torch.randint(2, (64,)))\n")  # fmt: skip
    said: list[str] = []
    row = service.start().client.submit(job, tell=said.append)
    files = service.state.job(row["id"]).files
    assert not (files / "weights.bin").exists() and not (files / ".hidden").exists()
    assert said and "not copied with the job: more of many/, weights.bin (1.0 MiB)." in said[0], said
    ended = service.wait_for_state(row["id"], *ENDED)
    assert ended["state"] == ("failed" if large else "succeeded"), ended
    assert not large or f"{folder / 'weights.bin'} exists, but was not copied with the job" in ended["error"]


def test_the_end_of_a_job_that_fails_is_told(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOGWILD_DATA", raising=False)
    service.start()
    missing = service.submit(*SMALL, "model.class_path=nowhere.Net", "model.init_args={}")
    bad = service.submit(*SMALL, "data.train.init_args.root=/nowhere", "data.train.class_path=hogwild.data.Mnist")
    rows = [service.wait_for_state(row["id"], *ENDED) for row in (missing, bad)]
    assert [(row["state"], row["error_code"], row["exit_status"]) for row in rows] == [
        ("failed", "config/no-such-module", 2),
        ("failed", "data/not-found", 3),
    ]
    assert "nowhere" in rows[0]["reason"]


def test_what_cannot_run_is_refused_at_once(service: Service, tmp_path: Path) -> None:
    service.start()
    with pytest.raises(ConfigError, match=r"digits.yaml|command line: train.epochs: must be >= 1, got 0"):
        service.submit("train.epochs=0")
    with pytest.raises(NotFoundError, match="no job '7'"):
        service.client.cancel(7)
    assert service.client.jobs() == []


def test_a_job_gets_what_it_asks_for_or_is_refused_with_the_numbers(service: Service) -> None:
    service.start()
    for change, words in (
        ("resources.cpus=4096", "resources.cpus: must be <= "),
        ("resources.gpus=1000", "resources.gpus: must be <= 0, which is what this machine has, got 1000"),
        ("resources.memory=1000 TiB", "resources.memory: must be <= "),
    ):
        with pytest.raises(UsageError, match=words) as caught:
            service.submit(*SMALL, change)
        assert caught.value.code == "service/too-much"
    with pytest.raises(ConfigError, match=r"resources.memory: must be a size, such as 4 GiB or 500 MB, got 'much'"):
        service.submit(*SMALL, "resources.memory=much")
    first = service.submit(*LONG, "resources.cpus=1", "queue.max_duration_s=1.5")
    row = service.submit(*SMALL, "resources.cpus=1", "resources.memory=1 MiB", "queue.priority=3")
    assert (row["cpus"], row["memory"], row["priority"]) == (1, 1 << 20, 3)
    assert service.wait_for_state(row["id"], *ENDED)["state"] == "succeeded"
    assert "max_duration_s" in service.wait_for_state(first["id"], *ENDED)["reason"]


@pytest.mark.whole
def test_a_pause_frees_the_cores_and_a_resume_goes_on(service: Service) -> None:
    row = service.start().training()
    service.client.pause(row["id"])
    paused = service.wait_for_state(row["id"], "paused")
    assert (paused["cores"], paused["pid"], paused["reason"]) == ([], None, "paused by the user")
    assert paused["updates"] > 0
    service.client.resume(row["id"])
    again = service.wait_for_state(row["id"], "running")
    assert again["attempt"] == 2
    wait_for("more updates", lambda: service.client.job(row["id"])["updates"] > paused["updates"])
    with pytest.raises(ConflictError, match="cancel it first"):
        service.client.delete(row["id"])
    service.client.cancel(row["number"])
    assert service.wait_for_state(row["id"], *ENDED)["state"] == "cancelled"
    service.client.delete(row["id"][:6])
    assert service.client.jobs() == [] and not run_of(service, row["id"]).exists()


def test_a_repeated_submission_is_the_same_job(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.start()
    monkeypatch.setattr("hogwild.service.client.secrets.token_hex", lambda _: "00000000000a")
    first, second = service.submit(*SMALL), service.submit(*SMALL)
    assert first["id"] == second["id"] and len(service.client.jobs()) == 1
    with pytest.raises(ConflictError, match="another one"):
        service.submit(*LONG)


# ---- the service ends


@pytest.mark.whole
def test_stopping_the_service_leaves_jobs_alone_and_the_next_one_takes_them_over(service: Service) -> None:
    row = running = service.start().running()
    assert service.stop() == 0
    with pytest.raises(ServiceError, match="no service runs on"):
        service.client.jobs()
    assert running["pid"] in service.processes()
    service.start()
    again = service.client.job(row["id"])
    assert [again[name] for name in ("state", "pid", "attempt", "cores")] == [
        running[name] for name in ("state", "pid", "attempt", "cores")
    ]
    os.kill(running["pid"], signal.SIGSTOP)  # is not lost, and is still told to stop
    service.client.pause(row["id"])
    assert service.wait_for_state(row["id"], *ENDED)["state"] == "paused"
    service.client.resume(row["id"])
    service.wait_for_state(row["id"], "running")
    service.client.cancel(row["id"])
    assert service.wait_for_state(row["id"], *ENDED)["state"] == "cancelled"
    wait_for("nothing left", lambda: not service.processes())


def test_who_waits_for_a_job_does_not_notice_that_the_service_is_started_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hogwild.service.client.AGAIN_S", 60.0)
    row = service.start().running()
    job, asked = Client.job, Event()

    def noticed(client: Client, name: str | int) -> dict[str, Any]:
        asked.set()
        return job(client, name)

    with ThreadPoolExecutor(1) as thread, monkeypatch.context() as patched:
        patched.setattr(Client, "job", noticed)
        waiting = thread.submit(service.client.wait, row["id"], 120)
        assert asked.wait(PATIENCE_S)
        service.kill()
        service.start().client.cancel(row["id"])
        assert waiting.result()["state"] == "cancelled"


def test_ends_without_a_service_are_booked_by_the_next_one(service: Service) -> None:
    service.start()
    rows = [service.submit(*overrides) for overrides in (SMALL, LONG)]
    service.wait_for_state(rows[0]["id"], "starting", "running")
    lost = service.wait_for_state(rows[1]["id"], "running")
    service.kill()
    os.kill(lost["pid"], signal.SIGKILL)
    wait_for("the end of the first job", lambda: "--json" not in str([*service.processes().values()]))
    service.start()
    assert service.wait_for_state(rows[0]["id"], *ENDED)["state"] == "succeeded"
    again = service.wait_for_state(rows[1]["id"], "running")
    assert (again["attempt"], starts(service, rows[0]["id"])) == (2, 1)
    assert "lost" in str(service.events(rows[1]["id"]))


@pytest.mark.parametrize("point", ["before-signal", "signalled"])
def test_a_service_killed_beside_a_signal_does_not_send_a_second_one(service: Service, point: str) -> None:
    """A second SIGTERM would end the job without a checkpoint."""
    row = service.start(failpoint=point).training()
    with contextlib.suppress(ServiceError):
        service.client.pause(row["id"])
    wait_for(f"the failpoint {point}", lambda: service.has_ended)
    service.start()
    paused = service.wait_for_state(row["id"], "paused")
    assert paused["exit_status"] in (75, None)
    assert list((run_of(service, row["id"]) / "checkpoints").glob("update-*"))


def test_a_stranger_with_the_number_of_a_job_is_left_alone(service: Service) -> None:
    """The store names a process that lives, with another start time, or of another boot."""
    row = service.start().submit(*LONG, "train.threads=64")
    waiting = service.submit(*LONG, "train.threads=64")
    running = service.wait_for_state(row["id"], "running")
    service.kill()
    os.kill(running["pid"], signal.SIGKILL)
    with subprocess.Popen(["sleep", "600"]) as stranger:
        try:
            with opened_store(service.state.path) as store:
                for name, boot in ((row["id"], boot_id()), (waiting["id"], "another boot")):
                    store.book(name, {"event": "starting", "attempt": 5, "cores": [0], "at": 1.0, "boot_id": boot})
                    store.book(name, {"event": "started", "pid": stranger.pid, "start_ticks": 1})
            service.start()
            assert service.wait_for_state(row["id"], "running")["attempt"] == 6
            assert service.client.job(waiting["id"])["state"] == "queued"
            for each in (row, waiting):
                service.client.cancel(each["id"], now=True)
            service.wait_for_state(row["id"], *ENDED)
            assert stranger.poll() is None
        finally:
            stranger.kill()


POINTS = ("added-aside", "added", "booked:1", "before-start", "spawned", "started", "booked:3", "before-end", "ended")


@pytest.mark.parametrize("point", POINTS if IS_THOROUGH else ("added", "before-start", "spawned", "started", "ended"))
def test_a_service_killed_at_any_boundary_runs_the_job_once(service: Service, point: str) -> None:
    service.start(failpoint=point)
    try:
        name = service.submit(*SMALL)["id"]
    except ServiceError:
        name = ""
    wait_for(f"the failpoint {point}", lambda: service.has_ended)
    service.start()
    rows = service.client.jobs()
    assert [row["id"] for row in rows] in ([name], [] if point == "added-aside" else [row["id"] for row in rows[:1]])
    for row in rows:
        ended = service.wait_for_state(row["id"], *ENDED)
        assert (ended["state"], ended["reason"]) == ("succeeded", "epochs")
        assert len(list((run_of(service, row["id"])).glob("summary.json"))) == 1
        events = (run_of(service, row["id"]) / "events.jsonl").read_text()
        assert events.count('"event":"start"') == 1, "trained twice"
    wait_for("nothing left", lambda: not service.processes())


@pytest.mark.parametrize("is_there", [True, False], ids=["the service sees the end", "it ends without a service"])
def test_what_user_code_leaves_running_is_swept(service: Service, tmp_path: Path, is_there: bool) -> None:
    """Its daemons carry the job's mark and lead sessions: none of them is taken for the job."""
    (tmp_path / "leaving.py").write_text(
        "import subprocess, torch\n"
        "def data():\n"
        "    for _ in range(3):\n"
        "        subprocess.Popen(['sh', '-c', 'setsid sleep 1000 & setsid sleep 1000 &'], start_new_session=True)\n"
        "    return torch.utils.data.TensorDataset(torch.randn(64, 3), torch.randint(2, (64,)))\n"
    )
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: {class_path: torch.nn.Linear, init_args: {in_features: 3, out_features: 2}}\n"
        "data: {train: {class_path: leaving.data}}\noptimizer: {init_args: {lr: 0.1}}\ntrain: {procs: 0}\n"
    )
    row = service.start().client.submit(job)
    if not is_there:
        service.wait_for_state(row["id"], "starting", "running")
        service.kill()
        wait_for("the end of the job", lambda: "--json" not in str([*service.processes().values()]))
        assert service.processes()
        service.start()
    assert service.wait_for_state(row["id"], *ENDED)["state"] == "succeeded"
    assert service.client.job(row["id"])["attempt"] == 1
    wait_for("nothing left", lambda: not service.processes())


def test_what_lost_its_mark_is_killed_with_its_session_and_no_stranger_is(tmp_path: Path) -> None:
    """A child that begins sessions of others, too, and dies: only those of its own are killed."""
    script = "env -i sleep 1000 & echo $!; (env -i sleep 1000 & echo $!) ; env -i setsid sleep 1000 & echo $!"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
        assert child.stdout is not None
        first, second, other = (int(child.stdout.readline()) for _ in range(3))
        try:
            wait_for("its own session", lambda: os.getsid(other) == other)
            process = JobProcess(child.pid, 0, pidfd_open(child.pid), child.wait)
            wait_for("its end", process.is_dead)
            assert process.close() == 0
            wait_for("the end of its session", lambda: {state_of(first), state_of(second)} <= {"Z", None})
            assert state_of(other) not in {"Z", None}, "a stranger was killed"
        finally:
            os.kill(other, signal.SIGKILL)


def test_a_run_that_somebody_trains_by_hand_is_left_to_him(service: Service, tmp_path: Path) -> None:
    row = service.start().training()
    service.client.pause(row["id"])
    service.wait_for_state(row["id"], "paused")
    run = run_of(service, row["id"])
    command = [sys.executable, RUN_PY, "train", "--resume", str(run), "--no-progress"]
    with subprocess.Popen(command, env=environment(service.mark, tmp_path), stderr=subprocess.DEVNULL) as by_hand:

        def trains() -> bool:
            record = read_json(run, "status.json")
            return (record.get("pid"), record.get("state"), by_hand.poll()) == (by_hand.pid, "running", None)

        wait_for("it trains", trains)
        service.client.resume(row["id"])
        wait_for("the refused attempt", lambda: service.client.job(row["id"])["attempt"] == 2)
        refused = service.wait_for_state(row["id"], "paused")
        assert f"in use by another job, process {by_hand.pid}" in refused["reason"]
        with pytest.raises(ConflictError, match="another process trains the run"):
            service.client.delete(row["id"])
        assert by_hand.poll() is None and run.is_dir()
        by_hand.terminate()
        assert by_hand.wait(PATIENCE_S) == 75


def test_a_job_that_runs_already_but_was_never_written_down_is_taken_over(service: Service) -> None:
    """The service was killed after it started the process, and lost what it knew of the job on the way."""
    row = running = service.start().running()
    (starting,) = (event for event in service.events(row["id"]) if event["event"] == "starting")
    service.kill()

    def forget(*events: dict[str, Any]) -> None:
        with opened_store(service.state.path) as store:
            store.jobs[row["id"]] = JobRecord(row["id"])
            for event in events:
                store.book(row["id"], event)
            store.book(row["id"], {"event": "passed"})

    forget(starting)
    service.start()
    again = service.wait_for_state(row["id"], "running")
    assert (again["pid"], again["attempt"]) == (running["pid"], 1)
    service.kill()
    forget()
    service.start()
    again = service.wait_for_state(row["id"], "running")
    assert again["pid"] == running["pid"]
    service.client.cancel(row["id"])
    assert service.wait_for_state(row["id"], *ENDED)["state"] == "cancelled"


def test_a_job_whose_folder_was_removed_fails_and_the_others_go_on(service: Service) -> None:
    running = service.start().submit(*LONG, "train.threads=64")
    waiting, last = service.submit(*SMALL), service.submit(*SMALL)
    service.wait_for_state(running["id"], "running")
    shutil.rmtree(service.state.job(waiting["id"]).path)
    service.client.cancel(running["id"])
    assert service.wait_for_state(waiting["id"], *ENDED)["error_code"] == "service/not-started"
    assert service.wait_for_state(last["id"], *ENDED)["state"] == "succeeded"
    service.kill()
    damaged = service.state.job(running["id"]).order
    damaged.write_text(damaged.read_text()[:100])
    service.state.database.unlink()
    service.start()
    assert "jobs.sqlite3 was missing and is made anew" in service.log()
    assert [row["id"] for row in service.client.jobs()] == [last["id"]]
    assert f"job {running['id']} is damaged and left alone" in service.log()
    with pytest.raises(ConflictError, match="is damaged"):
        service.client.job(running["id"])


def test_a_copied_state_folder_does_not_touch_the_jobs_of_its_original(service: Service, tmp_path: Path) -> None:
    row = service.start().submit(*LONG)
    shutil.copytree(service.state.path, tmp_path / "copy" / "state", ignore=shutil.ignore_patterns(".tmp-*"))
    running = service.wait_for_state(row["id"], "running")
    (tmp_path / "copy").mkdir(exist_ok=True)
    copy = Service(tmp_path / "copy", service.mark)
    copy.start()
    try:
        again = copy.wait_for_state(row["id"], "running")
        assert again["pid"] != running["pid"]
        assert service.client.job(row["id"])["pid"] == running["pid"]
    finally:
        copy.kill()


# ---- bad starts


def test_of_twenty_services_on_one_folder_one_lives(service: Service, tmp_path: Path) -> None:
    command = [sys.executable, RUN_PY, "serve", "--port", "0", "--state-dir", str(service.state.path)]
    racers = [
        subprocess.Popen(command, env=environment(service.mark, tmp_path), stderr=subprocess.PIPE, text=True)
        for _ in range(20 if IS_THOROUGH else 6)
    ]
    wait_for("the losers", lambda: sum(racer.poll() is not None for racer in racers) == len(racers) - 1)
    wait_for("the address", service.state.address.exists)
    assert Client(service.state.path).jobs() == []
    for racer in racers:
        if racer.poll() is None:
            racer.terminate()
            assert racer.wait(PATIENCE_S) == 0
        else:
            assert racer.returncode == 1
            assert racer.stderr is not None and "a service already runs on" in racer.stderr.read()
        assert racer.stderr is not None
        racer.stderr.close()


def test_a_port_in_use_is_named(service: Service) -> None:
    service.start()
    port = service.state.connection()["port"]
    second = subprocess.run(
        [sys.executable, RUN_PY, "serve", "--port", str(port), "--state-dir", str(service.folder / "other")],
        capture_output=True,
        text=True,
    )
    assert second.returncode == 4
    assert f"port {port} is used by another program; choose another one with --port" in second.stderr


def test_jobs_do_not_inherit_the_lock_and_their_mark_is_random(service: Service) -> None:
    row = service.start().submit(*LONG)
    pid = service.wait_for_state(row["id"], "running")["pid"]
    opened = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    assert not [name for name in opened if name.startswith(str(service.state.path)) and "/jobs/" not in name]
    assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null" and os.getsid(pid) == pid
    entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
    (mark,) = [entry for entry in entries if entry.startswith(JOB_MARK)]
    assert len(mark) > 32


def test_a_job_that_is_set_aside_keeps_its_cores_while_its_process_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error at one job that nobody foresaw: the others go on, but not on its cores."""
    state = StateFolder(tmp_path)
    state.make()
    os.close(lock_file(state.lock))
    loop = ServiceLoop(state, Machine(((0,),)), lambda: None, lambda: None)
    store = Store(state)
    store.load()
    for one in (order(1), order(2)):
        store.add(one, store.write_aside({"job.yaml": b""}, one))
    entry = entry_of(order(1), state.identity())
    name, _, value = entry.partition("=")
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, name: value}) as process:
        share = {"attempt": 1, "cores": [0], "boot_id": boot_id(), "at": 0.0}
        store.book(order(1).id, {"event": "starting", **share})
        store.book(order(1).id, {"event": "started", "pid": process.pid, "start_ticks": start_ticks(process.pid)})
        store.close()
        loop.load()
        monkeypatch.setattr(Moves, "look", lambda *_: 1 / 0)
        loop._turn()
        (row,) = (json.loads(text) for _, text in loop.snapshot.rows.values())
        found = row["state"], row["reason"]
        process.kill()
    assert "the service failed at it" in loop._store.unreadable[order(1).id]
    assert found == ("queued", "needs 1 core, 0 of 1 are free")
    assert loop._open_machine().busy == frozenset()


def test_a_job_whose_files_are_damaged_keeps_its_cores_while_its_process_runs(tmp_path: Path) -> None:
    """A restarted service does not know which cores it gave that job: the kernel does."""
    state = StateFolder(tmp_path)
    state.make()
    os.close(lock_file(state.lock))
    store = Store(state)
    store.load()
    store.add(order(1), store.write_aside({"job.yaml": b""}, order(1)))
    store.close()
    state.job(order(1).id).order.write_text("{")
    state.database.unlink()
    core = min(os.sched_getaffinity(0))
    name, _, value = entry_of(order(1), state.identity()).partition("=")
    loop = ServiceLoop(state, Machine(((core,),)), lambda: None, lambda: None)
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, name: value}, start_new_session=True) as process:
        os.sched_setaffinity(process.pid, {core})
        loop.load()
        busy = loop._open_machine().busy
        process.kill()
    assert [*loop._store.unreadable] == [order(1).id] and busy == {core}
    assert loop._open_machine().busy == frozenset()


def test_connections_without_a_request_do_not_end_the_service(service: Service) -> None:
    """Any user of the machine can open them, without a token."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        service.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with contextlib.ExitStack() as opened:
        place = ("127.0.0.1", service.state.connection()["port"])
        for _ in range(600):
            opened.enter_context(socket.create_connection(place, timeout=PATIENCE_S))
        assert service.client.jobs() == []  # the newest one is not dropped
        fds = Path(f"/proc/{service.process.pid}/fd") if service.process else Path()
        assert len(list(fds.iterdir())) < 512 - 64 and not service.has_ended
