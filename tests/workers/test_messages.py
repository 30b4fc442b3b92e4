"""Messages over a pipe or a socket: records that arrive whole or not at all, and words that always fit."""

import json
import os
import resource
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hogwild.errors import RunError
from hogwild.host import descriptor_count
from hogwild.workers.messages import (
    LOOK,
    MAX_DATAGRAM,
    MAX_DESCRIPTORS,
    RECORD,
    ParentGone,
    Report,
    Setup,
    read_records,
    receive_task,
    write_record,
)
from hogwild.workers.processes.handle import Handle
from hogwild.workers.processes.roster import Role

Pipe = tuple[int, int]
Channels = tuple[socket.socket, socket.socket]  # the supervisor's end, non-blocking; the worker's end
PIPE_BUF_MIN = 512  # POSIX: writes up to here are all or nothing


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """Both ends non-blocking, as the lease pipe's are; a test may have closed one."""
    ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    mine = [os.fstat(end).st_ino for end in ends]
    yield ends
    for end, inode in zip(ends, mine, strict=True):
        if os.path.exists(f"/proc/self/fd/{end}") and os.fstat(end).st_ino == inode:
            os.close(end)


@pytest.fixture
def channels() -> Iterator[Channels]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


# ---- records --------------------------------------------------------------------------------------------------------


def test_a_record_is_small_enough_to_be_written_all_or_not_at_all() -> None:
    assert RECORD.size == 8 <= PIPE_BUF_MIN


def test_records_arrive_whole_and_in_order(pipe: Pipe) -> None:
    sent = [(0, LOOK), (1, 1), (0xFFFFFFFF, 0xFFFFFFFF), *((n, 3 * n) for n in range(2, 2000))]
    for first, item in sent:
        assert write_record(pipe[1], first, item)
    assert list(read_records(pipe[0])) == sent
    assert list(read_records(pipe[0])) == []


def test_a_sequence_number_past_32_bits_begins_anew(pipe: Pipe) -> None:
    assert write_record(pipe[1], (1 << 32) + 5, 9)
    assert list(read_records(pipe[0])) == [(5, 9)]


def test_what_a_dead_writer_wrote_is_still_read(pipe: Pipe) -> None:
    write_record(pipe[1], 1, 2)
    write_record(pipe[1], 3, 4)
    os.close(pipe[1])
    assert list(read_records(pipe[0])) == [(1, 2), (3, 4)]
    assert list(read_records(pipe[0])) == []  # end-of-file


def test_a_full_pipe_takes_no_record_and_loses_none(pipe: Pipe) -> None:
    written = 0
    while write_record(pipe[1], written, LOOK):
        written += 1
        assert written < 1_000_000
    assert not write_record(pipe[1], 7, 7)
    assert list(read_records(pipe[0])) == [(n, LOOK) for n in range(written)]
    assert write_record(pipe[1], 8, 8)
    assert list(read_records(pipe[0])) == [(8, 8)]


def test_a_pipe_without_a_reader_is_no_error(pipe: Pipe) -> None:
    os.close(pipe[0])
    assert not write_record(pipe[1], 1, 1)


# ---- the set-up -----------------------------------------------------------------------------------------------------


def setup_of(regions: int) -> Setup:
    return Setup(
        worker=3,
        rows=4,
        threads=2,
        flush_denormal=True,
        regions=tuple((f"flat-{n}", 64 * (n + 1)) for n in range(regions)),
        structure_nbytes=10,
        log="runs/ä/worker-3.log",
        stacks="stacks.txt",
        cores=(2, 3),
        torch_settings={"dtype": "float64", "anomaly": [True, False]},
        sys_path=("folder with blanks", "Ordner-ä", "broken-\udcff"),
    )


@pytest.mark.parametrize("regions", [0, 1, MAX_DESCRIPTORS - 1])
def test_a_set_up_arrives_with_its_descriptors_in_order(channels: Channels, tmp_path: Path, regions: int) -> None:
    before = descriptor_count()
    sent = setup_of(regions)
    files = [os.open(tmp_path / str(n), os.O_RDWR | os.O_CREAT, 0o600) for n in range(regions)]
    sent.send(channels[0], files)
    inodes = [os.fstat(file).st_ino for file in files]
    for file in files:
        os.close(file)
    received, descriptors = receive_task(channels[1])
    assert received == sent
    assert [os.fstat(descriptor).st_ino for descriptor in descriptors] == inodes
    assert not any(os.get_inheritable(descriptor) for descriptor in descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    assert descriptor_count() == before


def test_a_supervisor_that_is_gone_is_the_end_of_the_file(channels: Channels) -> None:
    channels[0].close()
    with pytest.raises(ParentGone, match="closed the socket before the set-up was sent"):
        receive_task(channels[1])


def test_a_worker_has_parked_once_the_record_that_names_the_pause_was_read(pipe: Pipe) -> None:
    handle = Handle(None, 0, -1, -1, pipe[0], None, -1, Role.WORKER, 0, 1)  # type: ignore[arg-type]
    for first, item in ((0, LOOK), (3, 17), (0, 18)):  # ready; three batches skipped; a pause is on by now
        write_record(pipe[1], first, item)
    assert (handle.acks(), handle.parked_in) == ([(3, 17), (0, 18)], 0)
    write_record(pipe[1], 5, LOOK)
    assert (handle.acks(), handle.parked_in) == ([], 5)
    assert (handle.acks(), handle.parked_in) == ([], 5)


def test_a_report_to_a_supervisor_that_is_gone_raises_parent_gone(channels: Channels) -> None:
    channels[0].close()
    with pytest.raises(ParentGone):
        Report("ready").send(channels[1])


def test_descriptors_that_the_limit_does_not_allow_are_an_error_that_names_the_limit(channels: Channels) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    setup_of(40).send(channels[0], [channels[0].fileno()] * 40)
    before = open_descriptors()
    free = [number for number in range(1000) if number not in before]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[6], hard))  # room for six
    try:
        with pytest.raises(RunError, match=r"only 6 descriptors of shared memory arrived; raise .*ulimit -n"):
            receive_task(channels[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in open_descriptors() - before:
            os.close(descriptor)


def open_descriptors() -> set[int]:
    return {number for number in range(1000) if os.path.exists(f"/proc/self/fd/{number}")}


# ---- reports --------------------------------------------------------------------------------------------------------


def test_reports_arrive_as_they_were_sent(channels: Channels) -> None:
    sent = [
        Report("ready", detail="flat, SGD fused"),
        Report(
            "error", "ValueError: größer \u2603 \U0001f43a", "ValueError", "mymodel.py:7", True, "Traceback\n  \udcff"
        ),
    ]
    for report in sent:
        report.send(channels[1])
    assert list(Report.receive_all(channels[0])) == sent
    assert list(Report.receive_all(channels[0])) == []  # nothing there, and nobody waits


@pytest.mark.parametrize("character", ["x", "\n", "ä", "\U0001f43a", "\udcff"])
def test_a_traceback_of_any_length_is_cut_to_one_datagram_and_keeps_its_end(channels: Channels, character: str) -> None:
    long = character * 300_000 + "ValueError: the end"
    report = Report("error", "ValueError: no", "ValueError", "a.py:1", True, long)
    report.send(channels[1])
    (received,) = Report.receive_all(channels[0])
    assert received.traceback.endswith("ValueError: the end")
    assert report.traceback.endswith(received.traceback)
    assert replace(received, traceback=report.traceback) == report
    assert len(json.dumps(received.traceback)) > MAX_DATAGRAM // 8, "more was cut than had to be"


def test_a_message_of_any_length_is_cut_to_one_datagram_and_keeps_its_beginning(channels: Channels) -> None:
    long = "\U0001f43a" * 100_000
    Report("error", "ValueError: " + long, "V" + long, "p" + long, False, long).send(channels[1])
    (received,) = Report.receive_all(channels[0])
    assert received.detail.startswith("ValueError: \U0001f43a")
    assert (received.kind, received.error_type[0], received.place[0]) == ("error", "V", "p")


def test_the_last_words_of_a_worker_that_is_gone_are_heard(channels: Channels) -> None:
    report = Report("error", detail="MemoryError")
    report.send(channels[1])
    channels[1].close()
    assert list(Report.receive_all(channels[0])) == [report]
    assert list(Report.receive_all(channels[0])) == []


def test_the_last_words_of_a_worker_that_left_something_unread_are_heard_at_once(channels: Channels) -> None:
    """The kernel says 'connection reset' once, before it delivers what was sent."""
    setup_of(0).send(channels[0], [])
    report = Report("error", detail="MemoryError")
    report.send(channels[1])
    channels[1].close()
    assert list(Report.receive_all(channels[0])) == [report]
