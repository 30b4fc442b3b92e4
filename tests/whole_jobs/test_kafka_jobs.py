"""Whole jobs on a topic of a Kafka cluster, with a model that counts how often every message took effect
(jobs/counting.py): kills and resumes, outages, and ends while nothing comes."""

import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator

import pytest

pytest.importorskip("confluent_kafka", reason="needs confluent-kafka: pip install 'hogwild[kafka]'")

from pathlib import Path

from tests.helpers.jobs import JOBS, Job
from tests.helpers.kafka import PARTITIONS, Brokers, brokers
from tests.helpers.processes import wait_for

pytestmark = pytest.mark.processes

BATCH = 4  # of counting.yaml


@pytest.fixture(scope="module")
def cluster() -> Iterator[Brokers]:
    with brokers() as running:
        yield running


def numbers(those: Iterable[int]) -> list[tuple[int, dict[str, object]]]:
    """A message for each number, in shuffled order; number n is in partition n % PARTITIONS."""
    messages = [(one % PARTITIONS, {"a": one, "b": one, "user": f"u{one % 50}"}) for one in those]
    random.Random(len(messages)).shuffle(messages)
    return messages


def on_topic(cluster: Brokers, topic: str, messages: int, *more: str, given: str = "ids: [a]") -> list[str]:
    init_args = f"servers: '{cluster.servers}', topic: {topic}, target: b, target_type: class, {given}"
    return [
        str(JOBS / "counting.yaml"),
        f"data.train={{class_path: hogwild.data.Kafka, init_args: {{{init_args}}}}}",
        f"model.init_args.samples={messages}",
        "checkpoint.every_s=null",
        "train.exchange=direct",
        *more,
    ]


@pytest.mark.whole
def test_kills_of_everything_a_loader_and_a_worker_lose_and_repeat_no_message(
    cluster: Brokers, tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    topic, messages = "kills", 1600
    limits = [f"train.max_updates={messages // BATCH}", "checkpoint.every_updates=20"]
    cluster.send(topic, numbers(range(200)))
    job = start_job(tmp_path / "job", *on_topic(cluster, topic, messages, *limits))
    job.wait_for_updates(40)
    for first in range(200, 600, 40):  # piece by piece: the order between partitions is not that of a resume
        cluster.send(topic, numbers(range(first, first + 40)))
        job.wait_for_updates(first // BATCH)
    job.process.kill()
    job.process.wait()
    assert not job.left_behind()
    cluster.send(topic, numbers(range(600, 1000)))
    again = start_job(tmp_path / "again", "--resume", str(job.run_dir), run_dir=job.run_dir)
    again.wait_for_updates(1000 // BATCH)
    loader = again.events("loader-spawn")[-1]["pid"]
    os.kill(loader, signal.SIGKILL)
    again.wait_for_event("loader-exit")
    cluster.send(topic, numbers(range(1000, 1200)))
    again.wait_for_updates(1200 // BATCH)
    os.kill(min(again.workers().values()), signal.SIGKILL)
    cluster.send(topic, numbers(range(1200, messages)))
    ended = again.wait()
    assert ended.status == 0, ended.stderr
    assert ended.effects().tolist() == [1] * messages


def test_a_job_whose_brokers_are_away_is_alive_ends_at_once_and_does_not_go_on_in_another_cluster(
    tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    with brokers() as own:
        own.send("away", numbers(range(44)))
        limits = ["supervise.stall_timeout_s=10", "supervise.deadlock_timeout_s=15", "supervise.grace_s=10"]
        job = start_job(tmp_path / "job", *on_topic(own, "away", 44, *limits, "supervise.start_timeout_s=300"))
        job.wait_for_updates(10)  # of 11: the last two records of each loader are no batch
        own.kill()
        wait_for("a warning", lambda: "no broker of" in job.stderr(), 120)
        since = job.status()["time"]
        wait_for("more than the limits", lambda: job.status()["time"] > since + 20)
        job.send(signal.SIGINT)
        ended = job.wait()
    assert ended.reason == ("stopped", "SIGINT"), ended.stderr
    done = [int(one) for one in ended.effects().tolist()]
    assert sorted(done) == [0] * 4 + [1] * 40
    assert {event["kind"] for event in ended.events("loader-exit")} <= {"left"}, ended.stderr
    with brokers() as another:
        another.send("away", numbers(range(44)))
        servers = f"data.train.init_args.servers={another.servers}"
        resume = ["--resume", str(ended.run_dir), servers]
        again = start_job(tmp_path / "again", *resume, run_dir=ended.run_dir).wait()
        anyhow = [*resume, "data.train.init_args.on_gap=go_on", "train.max_updates=20"]
        last = start_job(tmp_path / "last", *anyhow, run_dir=ended.run_dir).wait()
    assert again.status not in (0, None)
    assert "another message stands at offset" in again.stderr and "on_gap: go_on" in again.stderr, again.stderr
    assert last.status == 0, last.stderr
    assert sum(last.effects().tolist()) == 80 and max(last.effects().tolist()) == 2


def test_a_message_that_is_no_record_ends_the_job_with_its_place(
    cluster: Brokers, tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    cluster.send("bad", [*numbers(range(80)), (1, b"no JSON")])
    ended = start_job(tmp_path / "job", *on_topic(cluster, "bad", 80)).wait()
    assert ended.status not in (0, None)
    assert "Kafka topic 'bad', partition 1, offset 20: is not JSON" in ended.stderr, ended.stderr


def test_the_only_process_reads_a_topic_to_its_end_in_two_epochs(
    cluster: Brokers, tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    cluster.send("end", numbers(range(42)))
    given = on_topic(cluster, "end", 42, "train.procs=0", "train.epochs=2", given="ids: [a], until: end")
    ended = start_job(tmp_path / "job", *given).wait()
    assert ended.reason == ("succeeded", "epochs"), ended.stderr
    assert ended.effects().tolist() == [2] * 42
    assert sorted(path.name for path in (ended.run_dir / "kafka").iterdir()) == ["000000-0", "000001-0"]
