"""Requests to a running job: what lies in the folder never stops the supervisor, nor the requests behind it."""

import os
from pathlib import Path

from hogwild.storage.run_directory import RunDir
from hogwild.workers.supervision.answers import LOOK_S, MOST_BYTES, Requests


def test_what_is_no_request_is_answered_or_passed_over_and_the_next_is_read(tmp_path: Path) -> None:
    requests, folder = Requests(tmp_path / "requests"), tmp_path / "requests"
    assert not list(requests.look(0.0)), "nobody has asked anything yet"
    folder.mkdir()
    (folder / "a.json").mkdir()
    os.mkfifo(folder / "b.json")
    (folder / "c.json").symlink_to("nowhere")
    (folder / "d.json").write_text('{"ask": ')
    (folder / "e.json").write_text("[1]")
    (folder / "f.json").write_bytes(b"\xff\xfe")
    (folder / "g.json").write_text("[" * MOST_BYTES)
    (folder / "h.json").write_text('{"ask": "' + "x" * MOST_BYTES + '"}')
    (folder / "i.tmp").write_text('{"ask": "resize", "procs": 1}')
    (folder / "j.json").write_text('{"ask": "resize", "procs": 3}')
    found = dict(requests.look(LOOK_S))
    assert found == {**{name: {} for name in "bdefgh"}, "j": {"ask": "resize", "procs": 3}}
    assert not dict(requests.look(2 * LOOK_S)), "each is answered once"
    assert sorted(file.name for file in folder.iterdir()) == ["a.json", "c.json", "i.tmp"]


def test_requests_to_an_earlier_attempt_are_not_answered_by_this_one_but_early_ones_are(tmp_path: Path) -> None:
    """A resume opens the run first of all: what is asked while it is being built is answered once it trains."""
    run = tmp_path / "run"
    (run / "requests").mkdir(parents=True)
    (run / "resolved.yaml").touch()
    (run / "requests" / "old.json").write_text('{"ask": "resize", "procs": 3}')
    (run / "requests" / ".tmp-half").write_text("{")
    with RunDir.open(run) as opened:
        (run / "requests" / "new.json").write_text('{"ask": "stacks"}')
        assert dict(Requests(opened.requests).look(0.0)) == {"new": {"ask": "stacks"}}
