"""Jobs that learn word vectors from texts that come while they train: words that nobody knew, growth, expiry, deaths;
and what is done with their words afterwards."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hogwild
from hogwild.cli import main
from hogwild.errors import RunEndedError, UsageError
from hogwild.inference.word_vectors import WordVectors
from tests.helpers.jobs import Ended, Job, start
from tests.helpers.predicting import Say

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")
pytest.importorskip("pyarrow", reason="words are found by pyarrow: pip install 'hogwild[csv]'")
pytestmark = pytest.mark.processes

WORDS, LENGTH = 12, 8  # of a topic, of a text
JOB = """
version: 1
model:
  class_path: hogwild.models.NamedSkipGram
  init_args: {capacity: 64, max_capacity: 200, dim: 16, window: 3, sample: 0.01, expire_after: 200, cbow: CBOW}
loss: {class_path: hogwild.losses.NegativeSampling}
data:
  train: {class_path: hogwild.data.Follow, init_args: {path: texts, text: true}}
  batch_size: 20
optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.05}}
train: {procs: 2, update: fused}
evaluate: {progressive: true}
"""


def append(path: Path, topics: list[str], count: int) -> None:
    draw = np.random.default_rng(len(topics))
    with open(path, "a") as file:
        for number in range(count):
            topic = topics[number % len(topics)]
            file.write(" ".join(f"{topic}-{word}" for word in draw.integers(WORDS, size=LENGTH)) + "\n")


@pytest.fixture(scope="module", params=["false", "true"], ids=["skip-gram", "CBOW"])
def followed(request: pytest.FixtureRequest, jobs_folder: Path) -> Ended:
    """Two workers over texts that come while they train and while everything is dead; a worker, then the whole job is
    killed; resumed, and stopped once all is trained. Nobody writes of the first topic any more."""
    folder = jobs_folder / f"texts-{request.param}"
    folder.mkdir()
    (folder / "job.yaml").write_text(JOB.replace("CBOW", request.param))
    texts = folder / "texts"
    append(texts, ["old"], 600)
    append(texts, ["sea", "sky"], 3400)
    job = start(folder, "job.yaml", "checkpoint.every_updates=50")
    job.wait_for_updates(150)
    os.kill(victim := job.workers()[0], signal.SIGKILL)
    job.wait_for_exit_of(victim)
    append(texts, ["sea", "sky", "war", "tea"], 4000)
    job.wait_for_updates(300)
    job.send(signal.SIGKILL)
    job.wait()
    append(texts, ["sea", "sky", "war", "tea", "zoo", "art"], 6000)
    again = start(folder, "--resume", str(job.run_dir), run_dir=job.run_dir)
    again.wait_for_updates(700)
    again.wait_for_event("rows-expired")
    again.send(signal.SIGINT)
    return again.wait()


def test_every_text_is_trained_once_and_words_of_one_topic_are_near_each_other(followed: Ended) -> None:
    assert followed.reason == ("stopped", "SIGINT") and followed.summary["samples"] == 14_000, followed.stderr
    assert followed.summary["update_why"] in ("fused: skip-gram by id, SGD", "fused: CBOW by id, SGD")
    assert {event["capacity"] for event in followed.events("rows-grown")} == {128}
    loaded = hogwild.load(followed.run_dir)
    topics = ("sea", "sky", "war", "tea", "zoo", "art")
    words = [f"{topic}-{word}" for topic in topics for word in range(WORDS)]
    assert sorted(loaded.vectors.names) == sorted(words), "the old topic has lost its rows"
    near = [name.split("-")[0] == word.split("-")[0] for word in words for name, _ in loaded.similar(word, top=5)]
    assert np.mean(near) > 0.95
    with pytest.raises(UsageError, match="old-1"):
        loaded.similar("old-1")
    assert {name.split("-")[0] for name in loaded.vectors.names[:20]} == {"sea", "sky"}, "seen most often"


def test_words_are_exported_for_other_programs(followed: Ended, tmp_path: Path) -> None:
    for name in ("words.txt", "words.bin"):
        assert main.run(["export", str(followed.run_dir), "--format", "word2vec", "--out", str(tmp_path / name)]) == 0
        read = WordVectors.load_word2vec(tmp_path / name, binary=name.endswith(".bin"))
        own = hogwild.load(followed.run_dir).vectors
        assert read.names == own.names and np.allclose(read.matrix, own.matrix, atol=1e-5)


def test_the_next_run_takes_words_along_into_a_larger_table(followed: Ended) -> None:
    """And learns nothing, with a rate of 0: the words that it has not met itself have their vectors and their names."""
    folder = followed.run_dir.parent
    (folder / "later").write_text("sea-1 new\n" * 40)
    given = (
        f"model.init_from={followed.run_dir}/checkpoints/latest",
        "model.init_args.max_capacity=3000",
        "model.init_args.capacity=300",
        "data.train.init_args={path: later, text: true, until: end}",
        "optimizer.init_args.lr=0.0",
    )
    ended = start(folder, "job.yaml", *given, "--run-dir", str(folder / "next"), run_dir=folder / "next").wait()
    assert ended.status == 0, ended.stderr
    old, new = (hogwild.load(run.run_dir).vectors for run in (followed, ended))
    assert {*new.names} == {*old.names, "new"} and new.names[:2] in (["new", "sea-1"], ["sea-1", "new"])
    assert all(np.array_equal(old[name], new[name]) for name in old.names)


def test_words_that_came_since_the_job_began_are_told_by_the_running_model(
    tmp_path: Path, start_job: Callable[..., Job], say: Say
) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("CBOW", "false"))
    append(tmp_path / "texts", ["sea", "sky"], 400)
    job = start_job(tmp_path, "job.yaml", "checkpoint.every_s=null")
    job.wait_for_updates(20)
    append(tmp_path / "texts", ["sea", "sky", "war"], 6000)
    job.wait_for_updates(320)
    status, lines, said = say("similar", job.run_dir, "war-1", "--live", "--top", 5)
    assert status == 0 and len(lines) == 5 and all("  war-" in line for line in lines), said
    live = hogwild.load(job.run_dir, live=True)
    assert live.similar(["war-1", "war-2"], ["sea-1"], top=1)[0][0].startswith("war-")
    with pytest.raises(UsageError, match="'old-1' is not among the 36 words"):
        live.similar("old-1")
    assert say("similar", job.run_dir, "war-1", "--live", "--which", "best")[0] == UsageError.exit_status
    assert not job.events("checkpoint")
    job.send(signal.SIGINT)
    job.wait()
    with pytest.raises(RunEndedError):
        live.similar("war-1")


def test_standard_input_is_texts_too(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("CBOW", "false").replace("path: texts", 'path: "-"'))
    append(tmp_path / "texts", ["sea", "sky"], 400)
    with open(tmp_path / "texts", "a") as file:
        file.write("\n\n")
    ended = start(tmp_path, "job.yaml", stdin=(tmp_path / "texts").read_text()).wait()
    assert ended.status == 0 and ended.summary["samples"] == 400, ended.stderr
    assert len(hogwild.load(ended.run_dir).vectors) == 2 * WORDS
