"""The life of a job as pure functions: every request in every state, every end, and random lives."""

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from hogwild.errors import ConflictError
from hogwild.service.states import (
    ENDED,
    LIVE,
    MOST_LOST,
    STATES,
    AttemptEnd,
    JobRecord,
    apply,
    asked,
    end_event,
    overdue,
)
from tests.helpers.service import order

JOB = JobRecord("0123456789ab")
ORDER = order(1)
STARTING = apply(JOB, {"event": "starting", "attempt": 1, "cores": [0], "at": 1.0, "boot_id": "b"})
STARTED = apply(STARTING, {"event": "started", "pid": 7, "start_ticks": 9})
RUNNING = apply(STARTED, {"event": "running"})
ASKS = ("cancel", "pause", "resume", "retry")
REFUSED, NOTHING = "refused", "nothing"


def in_state(state: str) -> JobRecord:
    if state == "stopping":
        return apply(RUNNING, {"event": "asked", "ask": "cancel", "urgency": 0})
    return {"starting": STARTED, "running": RUNNING}.get(state, replace(JOB, state=state))


def after(job: JobRecord, ask: str, now: bool = False) -> str:
    try:
        event = asked(job, ask, now=now, at=2.0)  # type: ignore[arg-type]
    except ConflictError:
        return REFUSED
    return NOTHING if event is None else apply(job, event).state


@pytest.mark.parametrize(
    ("state", "answers"),
    [
        ("queued", ("cancelled", "paused", NOTHING, NOTHING)),
        ("starting", ("stopping", "stopping", NOTHING, NOTHING)),
        ("running", ("stopping", "stopping", NOTHING, NOTHING)),
        ("stopping", (NOTHING, REFUSED, REFUSED, REFUSED)),
        ("paused", ("cancelled", NOTHING, "queued", "queued")),
        ("succeeded", (REFUSED, REFUSED, REFUSED, REFUSED)),
        ("failed", (REFUSED, REFUSED, REFUSED, "queued")),
        ("cancelled", (NOTHING, REFUSED, REFUSED, "queued")),
    ],
)
def test_every_request_in_every_state(state: str, answers: tuple[str, ...]) -> None:
    assert tuple(after(in_state(state), ask) for ask in ASKS) == answers


def test_a_pause_becomes_a_cancel_and_each_further_cancel_now_is_more_urgent() -> None:
    job, seen = apply(RUNNING, asked(RUNNING, "pause", now=False, at=2.0)), []
    for now in (False, False, True, True, True):
        event = asked(job, "cancel", now=now, at=2.0)
        job = job if event is None else apply(job, event)
        seen.append((job.asked, job.urgency, event is None))
    assert seen == [
        *(("cancel", 0, False), ("cancel", 0, True), ("cancel", 1, False), ("cancel", 2, False)),
        ("cancel", 2, True),
    ]


@pytest.mark.parametrize(
    ("ask", "end", "state"),
    [
        (None, AttemptEnd("succeeded", "epochs", exit_status=0), "succeeded"),
        ("cancel", AttemptEnd("succeeded", "epochs", exit_status=0), "succeeded"),  # it was done before
        (None, AttemptEnd("failed", error="x", exit_status=1), "failed"),
        ("pause", AttemptEnd("failed", error="x", exit_status=1), "failed"),
        (None, AttemptEnd("stopped", "max_time_s", exit_status=75), "paused"),
        ("pause", AttemptEnd("stopped", exit_status=75), "paused"),
        ("cancel", AttemptEnd("stopped", exit_status=75), "cancelled"),
        ("pause", AttemptEnd("cancelled", exit_status=143), "paused"),
        (None, AttemptEnd("cancelled", exit_status=143), "queued"),  # while it was built
        (None, AttemptEnd("cancelled", exit_status=130, is_begun=True), "cancelled"),
        ("cancel", AttemptEnd(), "cancelled"),
        ("pause", AttemptEnd(), "paused"),
        (None, AttemptEnd(), "queued"),
    ],
)
def test_every_end_of_a_process(ask: str | None, end: AttemptEnd, state: str) -> None:
    job = RUNNING if ask is None else apply(RUNNING, {"event": "asked", "ask": ask, "urgency": 0})
    ended = apply(job, end_event(job, ORDER, end, 3.0))
    assert ended.state == state
    assert (ended.pid, ended.cores, ended.asked, ended.urgency) == (None, (), None, 0)


def test_a_job_that_is_lost_again_and_again_fails_and_training_in_between_forgives() -> None:
    def lose(job: JobRecord) -> JobRecord:
        started = apply(apply(job, {**_STARTING, "attempt": job.attempt + 1}), _STARTED)
        return apply(started, end_event(started, ORDER, AttemptEnd(), 3.0))

    job = JOB
    for _ in range(MOST_LOST - 1):
        job = lose(job)
        assert job.state == "queued" and "lost" in (job.reason or "")
    trained = apply(apply(apply(job, _STARTING), _STARTED), {"event": "running"})
    assert apply(trained, end_event(trained, ORDER, AttemptEnd(), 3.0)).state == "queued"
    job = lose(job)
    assert (job.state, job.error_code) == ("failed", "service/lost")
    assert apply(job, {"event": "queued"}).lost == 0


def test_a_failed_job_is_retried_as_often_as_it_says_and_a_user_begins_the_count_again() -> None:
    failed, twice = AttemptEnd("failed", "ValueError: x", error="ValueError: x", exit_status=1), order(1, retries=2)
    job, states = RUNNING, []
    for _ in range(3):
        job = apply(job, end_event(job, twice, failed, 3.0))
        states.append((job.state, job.reason))
        job = apply(apply(apply(job, _STARTING), _STARTED), {"event": "running"}) if job.state == "queued" else job
    assert states == [
        ("queued", "failed: ValueError: x; retry 1 of 2"),
        ("queued", "failed: ValueError: x; retry 2 of 2"),
        ("failed", "ValueError: x"),
    ]
    assert apply(job, {"event": "queued"}).retried == 0
    told = apply(RUNNING, {"event": "asked", "ask": "pause", "urgency": 0})
    assert apply(told, end_event(told, twice, failed, 3.0)).state == "failed"


def test_a_job_that_runs_too_long_is_cancelled_counting_all_its_attempts() -> None:
    limited = order(1, max_duration_s=100.0)
    assert overdue(RUNNING, order(1), 1e9) is None
    paused = apply(RUNNING, {"event": "asked", "ask": "pause", "urgency": 0})
    ended = apply(paused, end_event(paused, limited, AttemptEnd("stopped"), 61.0))
    assert ended.ran_s == 60.0
    again = replace(RUNNING, ran_s=ended.ran_s)
    assert overdue(again, limited, 39.0) is None
    late = apply(again, overdue(again, limited, 41.0))  # type: ignore[arg-type]
    assert overdue(late, limited, 42.0) is None
    cancelled = apply(late, end_event(late, limited, AttemptEnd("stopped"), 110.0))
    assert cancelled.state == "cancelled" and "max_duration_s: 100" in (cancelled.reason or "")
    assert apply(cancelled, {"event": "queued"}).ran_s == 0.0


@pytest.mark.parametrize(("rule", "state"), [("resume", "queued"), ("pause", "paused")])
def test_after_a_reboot_a_job_goes_on_or_is_paused_and_is_not_charged(rule: str, state: str) -> None:
    end = AttemptEnd(is_reboot=True, is_begun=True)
    job = replace(RUNNING, lost=MOST_LOST - 1)
    ended = apply(job, end_event(job, order(1, on_reboot=rule), end, 3.0))
    assert (ended.state, ended.lost if rule == "resume" else 0) == (state, MOST_LOST - 1 if rule == "resume" else 0)


def test_a_process_that_was_never_started_costs_nothing() -> None:
    job = replace(STARTING, lost=MOST_LOST - 1)
    ended = apply(job, end_event(job, ORDER, AttemptEnd(), 3.0))
    assert (ended.state, ended.lost) == ("queued", MOST_LOST - 1)


_STARTING = {"event": "starting", "attempt": 1, "cores": [0, 1], "at": 1.0, "boot_id": "b"}
_STARTED = {"event": "started", "pid": 7, "start_ticks": 9}
ENDS = st.builds(
    AttemptEnd,
    state=st.sampled_from((None, "succeeded", "failed", "stopped", "cancelled")),
    reason=st.sampled_from((None, "why")),
    error=st.sampled_from((None, "what")),
    exit_status=st.sampled_from((None, 0, 1, 75, 130, -9)),
    is_begun=st.booleans(),
)


@given(st.lists(st.one_of(st.sampled_from(ASKS), st.just("work"), ENDS), max_size=40), st.booleans())
def test_in_any_life_the_journal_gives_the_record_and_only_a_live_job_has_a_process(lives: list, now: bool) -> None:
    job, journal = JOB, []

    def book(event: object) -> None:
        nonlocal job
        journal.append(json.dumps(event))
        job = apply(job, event)  # type: ignore[arg-type]

    for step in lives:
        if isinstance(step, AttemptEnd):
            if job.state in LIVE:
                book(end_event(job, ORDER, step, 3.0))
        elif step == "work":
            for state, event in (("queued", {**_STARTING, "attempt": job.attempt + 1}), ("starting", _STARTED)):
                if job.state == state and (state == "queued" or job.pid is None):
                    book(event)
                    break
            else:
                if job.state in LIVE:
                    book({"event": "running"})
        else:
            try:
                event = asked(job, step, now=now, at=2.0)
            except ConflictError:
                continue
            if event is not None:
                book(event)
        assert job.state in STATES
        assert job.state in LIVE or (job.pid is None and job.cores == () and job.asked is None)
        assert (job.ended is not None) or job.state not in ENDED
    folded = JOB
    for line in journal:
        folded = apply(folded, json.loads(line))
    assert folded == job == TypeAdapter(JobRecord).validate_json(json.dumps(asdict(job)))
