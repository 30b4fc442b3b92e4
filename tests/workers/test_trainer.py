"""The work of a worker on an item, in this process (helpers/one_trainer.py): the order of things, what ends an
exchange, what is too old, what is evaluated."""

import os
import socket
import threading

import numpy as np
import pytest
import torch
from torch import Tensor, optim

from hogwild.metrics.result_row import EvalSums
from hogwild.scheduling.work_queue import Kind, WorkItem
from hogwild.shared_memory.scoreboard import Command, Control, Phase, Word
from hogwild.user_code import short_place
from hogwild.workers.child import trainer as trainer_module
from hogwild.workers.child.trainer import LONGEST_EXCHANGE_NS, NonFiniteGradient, WorkerLoop, serve
from hogwild.workers.messages import LOOK, RECORD, Leaving, ParentGone, Report, Start, write_record
from tests.helpers.one_trainer import BATCH, OTHER, Place, cut, equal, examples, go_on
from tests.helpers.processes import wait_for
from tests.shared_model import (
    largest_difference,
    one_thread,  # noqa: F401 (a fixture for every test here)
    same_bits,
    train_plainly,
)

# ---- the order of things --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sync_every", "exchanges"), [(0, [1, 2, 3, 4, 5, 6, 7]), (1, [1, 2, 3, 4, 5, 6, 7]), (3, [3, 6, 7]), (9, [7])]
)
def test_the_flats_change_between_intent_and_commit_and_at_no_other_time(sync_every: int, exchanges: list[int]) -> None:
    place = Place(examples(7)).exchange(sync_every)
    trainer, row = place.trainer()
    assert trainer.train(place.item(), go_on) == 0
    assert row.words_written == [(kind, batches) for batches in exchanges for kind in ("intent", "commit")]
    last = [param.detach() for param in place.initial.parameters()]
    for intent, commit in zip(row.notes[::2], row.notes[1::2], strict=True):
        assert equal(intent.flats, last), "written before the intent"
        assert not equal(commit.flats, intent.flats), "committed before it was written"
        last = commit.flats
    assert equal([param.detach() for param in place.model.parameters()], last), "written after the commit"
    assert [int(word) for word in row.words[[Word.UPDATES, Word.BATCHES, Word.LOSSES]]] == [7, 7, 7]
    assert row.words[Word.STALENESS] == 7


@pytest.mark.parametrize(
    ("accumulate", "sync_every", "exchanges"), [(2, 2, [4, 7]), (3, 1, [3, 6, 7]), (2, 0, [2, 4, 6, 7])]
)
def test_an_exchange_holds_whole_updates_of_accumulated_batches(
    accumulate: int, sync_every: int, exchanges: list[int]
) -> None:
    place = Place(examples(7), {"accumulate": accumulate}).exchange(sync_every)
    trainer, row = place.trainer()
    trainer.train(place.item(), go_on)
    assert [note.batches for note in row.notes if note.kind == "commit"] == exchanges
    assert row.words[Word.UPDATES] == -(-7 // accumulate) and row.words[Word.BATCHES] == 7


def test_an_exchange_never_crosses_items() -> None:
    place = Place(examples(8)).exchange(3)
    trainer, row = place.trainer()
    for start in (0, 4):
        trainer.train(place.item(start, start + 4), go_on)
    assert row.words_written == [("intent", 3), ("commit", 3), ("intent", 4), ("commit", 4)] * 2


def test_state_that_is_taken_over_from_another_worker_keeps_the_counters_that_it_has() -> None:
    """Unequal ones, of parameters that were not always used: the rule does not go over the flat with them."""
    place = Place(examples(4), rule=optim.Adagrad)
    (first, _), (late, _) = place.trainer(0), place.trainer(1)
    first.train(place.item(0, 3), go_on)
    unused = first.model.params[2]
    first.model.optimizer.state[unused]["step"].sub_(1)
    late.train(place.item(3, 4), go_on)
    steps = [float(late.model.optimizer.state[param]["step"]) for param in late.model.params]
    assert steps == [4, 4, 3, 4, 4, 4]


# ---- what ends an exchange early ------------------------------------------------------------------------------------


def test_an_exchange_of_slow_updates_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that was never committed looks like a start that failed, or like a deadlock."""
    place = Place(examples(5)).exchange(100)
    trainer, row = place.trainer()
    clock_ns = [0]
    monkeypatch.setattr(trainer_module.time, "monotonic_ns", lambda: clock_ns[0])

    def take_time(*_: object) -> None:
        clock_ns[0] += LONGEST_EXCHANGE_NS // 2

    trainer.model.model.register_forward_hook(take_time)
    trainer.train(place.item(), go_on)
    assert [note.batches for note in row.notes if note.kind == "commit"] == [3, 5]


def test_who_is_told_to_leave_flushes_first() -> None:
    place = Place(examples(8)).exchange(5)
    trainer, row = place.trainer()
    answers = iter([True, True, True, False])
    assert trainer.train(place.item(), lambda: next(answers)) is None
    assert row.words_written == [("intent", 3), ("commit", 3)]
    assert equal(row.notes[-1].flats, [param.detach() for param in trainer.model.params])


def test_who_parks_flushes_and_reads_the_flats_again() -> None:
    place = Place(examples(6)).exchange(4)
    trainer, row = place.trainer()
    asked = iter(range(10))

    def park_before_the_third() -> bool:
        if next(asked) == 2:
            trainer.flush()
            with torch.no_grad():
                place.model.last.bias.fill_(5.0)  # of somebody who parked later
            trainer.follow()
            assert (trainer.model.model.last.bias == 5.0).all()
        return True

    assert trainer.train(place.item(), park_before_the_third) == 0
    assert row.words_written == [("intent", 2), ("commit", 2), ("intent", 6), ("commit", 6)]
    assert (place.model.last.bias - 5.0).abs().max() < 1.0


def test_an_exception_costs_its_own_update_and_what_came_before_is_committed() -> None:
    place = Place(examples(8)).exchange(6)
    trainer, row = place.trainer()
    seen = iter(range(10))

    def give_up(*_: object) -> None:
        if next(seen) == 3:
            raise ArithmeticError("the fourth")

    trainer.model.model.register_forward_hook(give_up)
    with pytest.raises(ArithmeticError, match="the fourth"):
        trainer.train(place.item(), go_on)
    assert row.words_written == [("intent", 3), ("commit", 3)]
    train_plainly(place.initial, optim.SGD(place.initial.parameters(), lr=0.1), cut(place.data)[:3])
    assert largest_difference(place.model, place.initial) <= 2 * 6e-8


@pytest.mark.parametrize("sync_every", [0, 3])
def test_an_update_that_is_not_finite_is_skipped_in_the_middle_of_an_exchange_and_leaves_no_trace(
    sync_every: int,
) -> None:
    data = examples(6)
    data[0][2 * BATCH + 1, 0] = float("nan")
    ours = Place(data).exchange(sync_every)
    trainer, row = ours.trainer()
    assert trainer.train(ours.item(), go_on) == 1
    rest = cut(data, without=2)
    innocent = Place((torch.cat([x for x, _ in rest]), torch.cat([y for _, y in rest]))).exchange(sync_every)
    other, _ = innocent.trainer()
    other.train(innocent.item(), go_on)
    assert same_bits(ours.model, innocent.model)
    assert equal(ours.own_buffers(trainer), innocent.own_buffers(other))
    if sync_every:
        assert [(note.batches, note.skipped) for note in row.notes if note.kind == "commit"] == [(4, 1), (6, 1)]
    assert [int(word) for word in row.words[[Word.UPDATES, Word.BATCHES, Word.LOSSES]]] == [5, 6, 5]


@pytest.mark.parametrize(("sync_every", "commits"), [(0, [1, 2, 3, 4]), (2, [4])])
def test_an_exchange_in_which_all_was_skipped_announces_nothing(sync_every: int, commits: list[int]) -> None:
    data = examples(4)
    data[0][:, 0] = float("nan")
    place = Place(data).exchange(sync_every)
    trainer, row = place.trainer()
    assert trainer.train(place.item(), go_on) == 4
    assert row.words_written == [("commit", batches) for batches in commits]
    assert place.is_untouched() and row.words[Word.UPDATES] == 0


def test_a_gradient_that_is_not_finite_ends_the_job_where_it_says_so() -> None:
    data = examples(4)
    data[0][2 * BATCH, 0] = float("inf")
    place = Place(data, {"fail_on_nan": True}).exchange(0)
    trainer, row = place.trainer()
    with pytest.raises(NonFiniteGradient, match="epoch 0, batch 2 is NaN or infinite"):
        trainer.train(place.item(), go_on)
    assert [note.batches for note in row.notes if note.kind == "commit"] == [1, 2]


# ---- too old --------------------------------------------------------------------------------------------------------


def test_in_direct_an_update_that_is_too_old_is_dropped() -> None:
    place = Place(examples(5), {"max_staleness": 2}).exchange(0)
    trainer, row = place.trainer()
    buffers: list[list[Tensor]] = []
    place.overtaken_in(trainer, {1: 2, 3: 3})

    def look() -> bool:
        buffers.append(place.own_buffers(trainer))
        return True

    assert trainer.train(place.item(), look) == 1
    assert [(note.kind, note.batches, note.skipped) for note in row.notes][6:] == [
        ("commit", 4, 1),
        ("intent", 5, 0),
        ("commit", 5, 1),
    ]
    dropped = row.notes[6]
    assert equal(dropped.flats, row.notes[5].flats) and equal(buffers[4], buffers[3])
    assert [int(word) for word in row.words[Word.STALENESS : Word.STALENESS + 4]] == [3, 0, 1, 0]
    train_plainly(place.initial, optim.SGD(place.initial.parameters(), lr=0.1), cut(place.data, without=3))
    assert largest_difference(place.model, place.initial) <= 4 * 6e-8


def test_in_delta_a_flush_that_is_too_old_is_dropped_with_all_its_updates() -> None:
    place = Place(examples(9), {"max_staleness": 5}).exchange(3)
    trainer, row = place.trainer()
    buffers: list[list[Tensor]] = []
    place.overtaken_in(trainer, {0: 2, 2: 3, 3: 3, 4: 3})

    def look() -> bool:
        buffers.append(place.own_buffers(trainer))
        return True

    assert trainer.train(place.item(), look) == 3
    assert [(note.kind, note.batches, note.skipped) for note in row.notes] == [
        ("intent", 3, 0), ("commit", 3, 0), ("commit", 6, 3), ("intent", 9, 0), ("commit", 9, 3),
    ]  # fmt: skip
    assert equal(row.notes[2].flats, row.notes[1].flats), "what was dropped is in the flats"
    assert equal(buffers[6], buffers[3]) and not equal(buffers[5], buffers[3])
    assert [int(word) for word in row.words[[Word.UPDATES, Word.BATCHES]]] == [6, 9]
    assert row.words[Word.STALENESS] == 3 and row.words[Word.STALENESS + 5] == 3
    rest = cut(place.data)[:3] + cut(place.data)[6:]
    train_plainly(place.initial, optim.SGD(place.initial.parameters(), lr=0.1), rest)
    assert largest_difference(place.model, place.initial) <= 4 * 6e-8


def test_what_comes_in_while_a_flush_reads_the_flats_counts_as_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Perhaps it was read and perhaps not: an update is never older than its staleness says."""
    place = Place(examples(4), {"max_staleness": 0}).exchange(2)
    trainer, _ = place.trainer()
    exchange = trainer.model.exchange
    flush = exchange.flush

    def flush_and_be_overtaken() -> None:
        flush()
        place.overtake(1)

    monkeypatch.setattr(exchange, "flush", flush_and_be_overtaken)
    assert trainer.train(place.item(), go_on) == 2


def test_own_updates_do_not_make_a_worker_old() -> None:
    for sync_every in (0, 2):
        place = Place(examples(8), {"max_staleness": 0}).exchange(sync_every)
        trainer, _ = place.trainer()
        assert [trainer.train(place.item(start, start + 4), go_on) for start in (0, 4)] == [0, 0]


def test_what_was_in_hand_before_a_worker_parked_is_evaluated_before_it_waits() -> None:
    """And not at the next beat. Here a wait raises: nobody holds the other end of the lifeline."""
    place = Place(examples(2))
    place.board.send(Command.PAUSE, 1)
    trainer, _ = place.trainer()
    place.board.write_item(WorkItem(90, Kind.EVALUATE, 0, 0, 2))
    (lease_read, lease_write), (ack_read, ack_write), (lifeline, its_end) = (os.pipe() for _ in range(3))
    os.set_blocking(lease_read, False)
    os.close(its_end)
    try:
        loop = WorkerLoop(Start(os.getpid(), lease_read, ack_write, -1, lifeline, -1, ()), trainer, Leaving())
        loop._hand.append(90)
        with pytest.raises(ParentGone):
            loop._may_go_on()
        assert EvalSums.read(place.board.result(90)).words[3] == 2 * BATCH
    finally:
        for descriptor in (lease_read, lease_write, ack_read, ack_write, lifeline):
            os.close(descriptor)


def test_a_parked_worker_goes_on_once_a_record_says_so_and_finds_what_was_stored_before() -> None:
    """A word of shared memory alone may be seen before what was written ahead of it, on some machines."""
    place = Place(examples(2))
    place.board.send(Command.PAUSE, 1)
    trainer, row = place.trainer()
    before = trainer.model
    (lease_read, lease_write), (ack_read, ack_write), (lifeline, its_end) = (os.pipe() for _ in range(3))
    os.set_blocking(lease_read, False)
    found: list[object] = []

    def go_back_and_on() -> None:
        found.append(os.read(ack_read, 100))
        write_record(lease_write, 0, LOOK)  # the pause's own doorbell comes late
        place.board.send(Command.RUN, 1)
        for _ in range(2):
            beat = int(row.words[Word.BEAT_NS])
            wait_for("a look at the control row", lambda beat=beat: row.words[Word.BEAT_NS] != beat)  # type: ignore[misc]
        found.append(Phase(int(row.words[Word.PHASE])))
        place.board.go_back(0, 1, place.ids + 1)
        write_record(lease_write, 1, LOOK)

    supervisor = threading.Thread(target=go_back_and_on)
    supervisor.start()
    try:
        loop = WorkerLoop(Start(os.getpid(), lease_read, ack_write, -1, lifeline, -1, ()), trainer, Leaving())
        assert loop._may_go_on()
        supervisor.join()
        assert found == [RECORD.pack(1, LOOK), Phase.PARKED], "it names its pause, and stays until it is told"
        assert trainer.model is not before
    finally:
        supervisor.join()
        for descriptor in (lease_read, lease_write, ack_read, ack_write, lifeline, its_end):
            os.close(descriptor)


def test_a_worker_that_leaves_after_a_rollback_makes_nothing_again() -> None:
    place = Place(examples(2))
    place.board.send(Command.PAUSE, 1)
    trainer, row = place.trainer()
    before = trainer.model
    (lease_read, lease_write), (ack_read, ack_write), (lifeline, its_end) = (os.pipe() for _ in range(3))
    os.set_blocking(lease_read, False)

    def go_back_and_end() -> None:
        os.read(ack_read, 1)  # it has parked
        assert row.words[Word.PARKED] == 1
        place.board.go_back(0, 1, place.ids + 1)
        place.board.send(Command.LEAVE)

    supervisor = threading.Thread(target=go_back_and_end)
    supervisor.start()
    try:
        WorkerLoop(Start(os.getpid(), lease_read, ack_write, -1, lifeline, -1, ()), trainer, Leaving()).run()
        assert trainer.model is before
        trainer.catch_up()
        assert trainer.model is not before
    finally:
        supervisor.join()
        for descriptor in (lease_read, lease_write, ack_read, ack_write, lifeline, its_end):
            os.close(descriptor)


# ---- schedules, changes of exchange, evaluation ---------------------------------------------------------------------


@pytest.mark.parametrize(("sync_every", "progress"), [(0, [100, 101, 112, 113, 114]), (2, [100, 101, 112, 113, 114])])
def test_the_learning_rate_follows_what_everybody_has_done(sync_every: int, progress: list[int]) -> None:
    asked: list[int] = []

    def schedule(update: int) -> float:
        asked.append(update)
        return 1.0

    place = Place(examples(5), {"schedule": schedule}).exchange(sync_every)
    place.board.control[Control.BASE_UPDATES] = 100
    trainer, _ = place.trainer()
    place.overtaken_in(trainer, {2: 10})
    trainer.train(place.item(), go_on)
    assert asked == progress


def test_a_trainer_changes_how_it_exchanges_between_items_and_in_the_middle_of_one() -> None:
    place = Place(examples(12), rule=lambda params, lr: optim.SGD(params, lr=lr, momentum=0.9)).exchange(0)
    trainer, row = place.trainer()
    asked = iter(range(20))

    def change() -> bool:
        if (at := next(asked)) in (6, 9):
            trainer.flush()
            place.exchange(2 if at == 6 else 0)
            trainer.follow()
        return True

    trainer.train(place.item(0, 2), change)
    place.exchange(4)
    trainer.train(place.item(2, 5), change)
    place.exchange(0)
    trainer.train(place.item(5, 12), change)
    commits = [note.batches for note in row.notes if note.kind == "commit"]
    assert commits == [1, 2, 3, 1, 3, 4, 5, 6, 7]
    rule = optim.SGD(place.initial.parameters(), lr=0.1, momentum=0.9)
    train_plainly(place.initial, rule, cut(place.data))
    assert largest_difference(place.model, place.initial) <= 12 * 2 * 6e-8


def test_an_evaluation_sees_what_others_flushed_after_we_parked() -> None:
    place = Place(examples(6)).exchange(4)
    (early, _), (late, _) = place.trainer(0), place.trainer(OTHER)
    early.train(place.item(0, 3), go_on)
    late.train(place.item(3, 6), go_on)
    evaluation = WorkItem(90, Kind.EVALUATE, 0, 0, 6)
    found = []
    for trainer in (early, late):
        trainer.model.model.load_state_dict(
            dict(place.initial.named_buffers()), strict=False
        )  # what a pause does for all: the same averages
        trainer.evaluate(evaluation)
        found.append(EvalSums.read(place.board.result(90)))
        np.copyto(place.board.result(90), 0.0)
    assert found[0] == found[1] and found[0].words[3] == 48
    assert equal([p.detach() for p in early.model.params], [p.detach() for p in place.model.parameters()])


def test_an_end_of_file_in_the_user_s_code_is_reported_as_any_exception(capsys: pytest.CaptureFixture[str]) -> None:
    """A truncated pickle raises EOFError, too: the supervisor is not gone then."""
    supervisor, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def load_nothing() -> WorkerLoop:
        raise EOFError("Ran out of input")

    with supervisor, channel:
        assert serve(Start(os.getpid(), -1, -1, -1, -1, -1, ()), channel, Leaving(), load_nothing) == 1
        supervisor.setblocking(False)
        (report,) = Report.receive_all(supervisor)
    assert (report.kind, report.detail) == ("error", f"EOFError: Ran out of input ({short_place(report.place)})")
    assert report.place.startswith(f"{__file__}:")
    assert "Ran out of input" in capsys.readouterr().err
