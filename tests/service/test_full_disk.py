"""A state folder without space: nothing half-written, running jobs untouched, events written once there is room."""

import os
from pathlib import Path

import pytest

from hogwild.errors import StorageFullError
from hogwild.service.folders import StateFolder
from hogwild.service.store import Store
from tests.helpers import mounts
from tests.helpers.service import LONG, order, serving

pytestmark = pytest.mark.processes
MEBIBYTE = 1 << 20


def fill(disk: Path) -> Path:
    """Leave no byte free."""
    file = disk / "filler"
    with open(file, "wb", buffering=0) as stream:
        for size in (MEBIBYTE, 4096, 1):
            try:
                while True:
                    stream.write(b"x" * size)
            except OSError:
                continue
    return file


def test_a_full_disk_takes_no_new_job_and_keeps_the_events_of_the_others(tmp_path: Path) -> None:
    with mounts.disk(tmp_path / "disk", "2m") as disk:
        state = StateFolder(disk / "state")
        state.make()
        store = Store(state)
        store.load()
        first = order(1)
        store.add(first, store.write_aside({"job.yaml": b"x"}))
        filler = fill(disk)
        with pytest.raises(StorageFullError, match="not accepted"):
            store.write_aside({"job.yaml": b"x" * 10_000})
        starting = {"event": "starting", "attempt": 1, "cores": [0], "at": 1.0, "boot_id": "b"}
        with pytest.raises(StorageFullError, match="disk full"):
            store.book(first.id, starting, must=True)
        assert store.jobs[first.id].state == "queued" and not store.is_behind
        assert store.book(first.id, starting).state == "starting" and store.is_behind
        assert store.book(first.id, {"event": "started", "pid": 7, "start_ticks": 9}).pid == 7
        filler.unlink()
        store.write_late()
        assert not store.is_behind
        store.close()
        again = Store(state)
        again.load()
        assert again.jobs == store.jobs == {first.id: again.jobs[first.id]}
        assert again.jobs[first.id].pid == 7
        again.close()


@pytest.mark.whole
def test_on_a_full_disk_submit_is_refused_and_cancel_works(tmp_path: Path) -> None:
    with mounts.disk(tmp_path / "disk", "16m") as disk, serving(disk, TMPDIR=str(tmp_path)) as service:
        service.start()
        row = service.submit(*LONG, "log.every_s=3600", "checkpoint.every_s=3600", "evaluate.every_epochs=null")
        service.wait_for_state(row["id"], "running")
        filler = fill(disk)
        with pytest.raises(StorageFullError) as caught:
            service.submit(*LONG)
        assert caught.value.code == "service/full"
        assert [one["id"] for one in service.client.jobs()] == [row["id"]]
        assert service.client.job(row["id"])["state"] == "running"
        service.client.cancel(row["id"])
        assert service.wait_for_state(row["id"], "cancelled", "failed")["attempt"] == 1
        os.unlink(filler)
        service.kill()
        service.start()
        assert [one["state"] in ("cancelled", "failed") for one in service.client.jobs()] == [True]
