"""Records of a topic: as from a followed file, from any place on, in the same order; and what is refused."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="needs confluent-kafka: pip install 'hogwild[kafka]'")
pytest.importorskip("pyarrow", reason="tables are parsed by pyarrow: pip install 'hogwild[csv]'")

from hogwild.data import Follow, Kafka, kafka, key_of
from hogwild.data.text_keys import NAMES, names_of
from hogwild.errors import DataError, NotFoundError, UsageError
from hogwild.feeds.stream_reader import WatchedInfo, set_worker_info
from hogwild.feeds.waiting import set_pause
from tests.data.test_follow import BAD, NAMED, ROWS, file_of, jsonl_of, plain
from tests.helpers.kafka import PARTITIONS, Brokers, brokers

pytestmark = pytest.mark.processes

TOPICS = (f"topic{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Brokers]:
    with brokers() as running:
        yield running


@pytest.fixture
def topic() -> str:
    return next(TOPICS)


@pytest.fixture
def on_pause() -> Iterator[Callable[..., None]]:
    """Sets what is done in a pause; by default waiting has a deadline."""
    began_s = time.monotonic()

    def pause(seconds: float) -> None:
        assert time.monotonic() < began_s + 60
        time.sleep(seconds)

    set_pause(pause)
    yield set_pause
    set_pause(None)


def of(cluster: Brokers, topic: str, **arguments: Any) -> Kafka:
    return Kafka(cluster.servers, topic, **{"until": "end", "missing": 0.0, **NAMED, **arguments})


def reader_of(data: Kafka, state: Any = None, run: Path | None = None, shard: int = 0, shards: int = 1) -> Any:
    """Return the iterator of a loader."""
    data.run_dir_of_job = None if run is None else str(run)
    set_worker_info(WatchedInfo(data, shard, shards, 0))
    try:
        reader = iter(data)
    finally:
        set_worker_info(None)
    if state is not None:
        reader.load_state_dict(state)
    return reader


def numbered(cluster: Brokers, topic: str, places: Any) -> None:
    cluster.send(topic, [(partition, {"n": number, "y": 1}) for number, partition in places])


def of_numbers(cluster: Brokers, topic: str, **arguments: Any) -> Kafka:
    return Kafka(cluster.servers, topic, target="y", ids=["n"], **arguments)


def ids(records: Any) -> list[int]:
    return [int(record[0]) for record in records]


# ---- records


def test_a_json_message_is_a_line_of_a_followed_file(cluster: Brokers, topic: str, tmp_path: Path) -> None:
    texts = jsonl_of().splitlines()
    texts[1] = json.dumps(ROWS[1], indent=1)  # several lines are still one object
    cluster.send(topic, [(0, text.encode()) for text in texts])
    whole = plain(Follow(file_of(tmp_path, jsonl_of()), until="end", missing=0.0, **NAMED))
    assert plain(of(cluster, topic)) == whole


def test_csv_messages_have_the_columns_of_the_argument(cluster: Brokers, topic: str) -> None:
    cluster.send(topic, [(0, b"ann;1,5;1"), (0, b'"b;b";2;0\n')])
    given = {"columns": ["user", "price", "clicked"], "delimiter": ";", "decimal": ","}
    found = of(cluster, topic, ids=["user"], features=[], **given)
    assert plain(found) == [([1.5], key_of("ann"), 1), ([2.0], key_of("b;b"), 0)]


def test_without_a_target_messages_are_libsvm(cluster: Brokers, topic: str) -> None:
    cluster.send(topic, [(0, b"1 3:1.5 9:2 # a comment"), (0, b"0 1:1")])
    assert plain(Kafka(cluster.servers, topic, until="end")) == [([3, 9], [1.5, 2.0], 1.0), ([1], [1.0], 0.0)]


@pytest.mark.parametrize(
    "name", [*(name for name in BAD if BAD[name][0][0] in "{["), "none", "empty", "Avro", "infinite"]
)
def test_a_message_that_is_no_record_is_an_error_with_its_place_or_left_out(
    name: str, cluster: Brokers, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    odd: dict[str, tuple[bytes | None, str]] = {
        "none": (None, "has no value"),
        "empty": (b" \n", "is empty"),
        "Avro": (b"\0\0\0\0\x07\x06ann", "Avro"),
        "infinite": (b'{"user": "ann", "item": 1, "price": Infinity, "clicked": 1}', "must be finite"),
    }
    value, words = odd.get(name) or (BAD[name][0].encode("utf-8", "surrogateescape"), BAD[name][1])
    good = {"user": "ann", "item": 1, "price": 1, "clicked": 1}
    cluster.send(topic, [(2, good), (2, good), (2, value), (2, good)])
    with pytest.raises(DataError) as error:
        [*of(cluster, topic)]
    assert str(error.value).startswith(f"Kafka topic '{topic}', partition 2, offset 2: "), error.value
    assert (
        words in str(error.value) and "on_bad_message: skip" in str(error.value) and "line 1: " not in str(error.value)
    )
    assert len([*of(cluster, topic, on_bad_message="skip")]) == 3
    assert words in caplog.text and "1 so far" in caplog.text


@pytest.mark.parametrize("value", [b"ann,1,1\nbob,2,0", b"ann,1", b"ann,dear,1", b'"ann,1,1', b"\xff,1,1"])
def test_a_csv_message_that_is_no_record_is_an_error_with_its_place(value: bytes, cluster: Brokers, topic: str) -> None:
    cluster.send(topic, [(0, b"ann,1,1"), (0, value)])
    with pytest.raises(DataError, match="partition 0, offset 1: "):
        [*of(cluster, topic, ids=["user"], features=[], columns=["user", "price", "clicked"])]


def test_a_file_to_predict_is_read_by_follow(tmp_path: Path) -> None:
    given = {"servers": "none", "topic": "clicks", "settings": {}, "on_bad_message": "skip", **NAMED, "missing": 0.0}
    found = Follow(file_of(tmp_path, jsonl_of()), **Kafka.for_inputs(given, None))
    whole = plain(Follow(file_of(tmp_path, jsonl_of(), "same"), until="end", missing=0.0, **NAMED))
    assert [record[:-1] for record in plain(found)] == [record[:-1] for record in whole]
    assert Kafka.kind_of_file is Follow


# ---- places


def test_a_resume_gives_the_same_records_in_the_same_order_from_any_place(
    cluster: Brokers, topic: str, tmp_path: Path, on_pause: Callable[..., None]
) -> None:
    reader = reader_of(of_numbers(cluster, topic), None, tmp_path)
    numbers, states, found = itertools.count(), [reader.state_dict()], list[int]()
    for partition in [0, 3, 0, 1, 1, 3, 2, 0, 3, 1]:  # each piece is read before the next one is there
        numbered(cluster, topic, [(next(numbers), partition) for _ in range(3)])
        for _ in range(3):
            found += ids([next(reader)])
            states.append(reader.state_dict())
    assert found == [*range(30)]
    numbered(cluster, topic, [(next(numbers), partition) for partition in (0, 1, 2, 3)])
    for place, state in enumerate(states):
        again = reader_of(of_numbers(cluster, topic, until="end"), state, tmp_path)
        rest = ids(again)
        assert rest[: 30 - place] == found[place:]
        assert sorted(rest[30 - place :]) == [30, 31, 32, 33]
        del again  # one process writes the order


def test_loaders_divide_the_partitions_and_write_files_of_their_own(
    cluster: Brokers, topic: str, tmp_path: Path
) -> None:
    cluster.send(topic, [(k % PARTITIONS, {"n": f"name {k}", "y": 1}) for k in range(40)])
    found = [ids(reader_of(of_numbers(cluster, topic, until="end"), None, tmp_path, shard, 3)) for shard in range(3)]
    assert [len(part) for part in found] == [20, 10, 10]
    assert {*itertools.chain(*found)} == {key_of(f"name {k}") for k in range(40)}
    assert names_of(tmp_path) == {key_of(f"name {k}"): f"name {k}" for k in range(40)}
    assert sorted(path.name for path in tmp_path.glob("names*")) == ["names-1.jsonl", "names-2.jsonl", NAMES]


def test_a_loader_without_partitions_ends_and_says_it(
    cluster: Brokers, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    numbered(cluster, topic, [(1, 0)])
    assert ids(reader_of(of_numbers(cluster, topic, until="end"), None, None, 4, 5)) == []
    assert "loader 4 has none" in caplog.text


def test_a_new_partition_is_read_from_its_beginning(
    cluster: Brokers, topic: str, on_pause: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster for tests cannot add partitions: some of them are hidden from the loader for a while."""
    numbered(cluster, topic, [(0, 0), (1, 1), (2, 2), (3, 3)])
    monkeypatch.setattr(kafka, "LOOK_S", 0.0)
    seen, divide = [2], kafka.FollowedTopic._divide
    monkeypatch.setattr(kafka.FollowedTopic, "_divide", lambda self, all: divide(self, all[: seen[0]]))
    reader = reader_of(of_numbers(cluster, topic))
    first = sorted(ids([next(reader), next(reader)]))
    numbered(cluster, topic, [(4, 3)])
    state = reader.state_dict()
    seen[0] = PARTITIONS
    assert first == [0, 1]
    assert sorted(ids(next(reader) for _ in range(3))) == [2, 3, 4]
    again = reader_of(of_numbers(cluster, topic, until="end"), state)
    assert sorted(ids(again)) == [2, 3, 4]
    assert len(json.dumps(state, default=str)) > 64


# ---- gaps


def gaps(cluster: Brokers, topic: str, state: Any) -> list[int]:
    """Expect a gap, and return what is read with on_gap: go_on."""
    with pytest.raises(DataError) as error:
        [*reader_of(of_numbers(cluster, topic, until="end"), state)]
    assert error.value.code == "data/gap", error.value
    return ids(reader_of(of_numbers(cluster, topic, until="end", on_gap="go_on"), state))


def place(offset: int, was: bytes = b"?" * 16, partition: int = 0) -> dict[str, Any]:
    return {"partitions": {partition: [offset, was]}, "given": offset, "room": b""}


def test_messages_that_brokers_removed_unread_are_a_gap(
    cluster: Brokers, topic: str, on_pause: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    numbered(cluster, topic, [(0, 0), (1, 0)])
    reader = reader_of(of_numbers(cluster, topic))
    next(reader)
    state = reader.state_dict()
    next(reader)
    behind_both = reader.state_dict()
    wide = "x" * 100_000
    for number in range(2, 80):  # more than a partition keeps
        cluster.send(topic, [(0, {"n": number, "y": 1, "wide": wide})])
    left = gaps(cluster, topic, state)
    assert left == [*range(left[0], 80)] and left[0] > 10
    assert "messages 1 to" in caplog.text and "were removed before they were read" in caplog.text
    with pytest.raises(DataError, match="messages 2 to"):
        [*reader_of(of_numbers(cluster, topic, until="end"), behind_both)]


def test_nothing_is_missing_where_only_what_was_read_is_removed(cluster: Brokers, topic: str) -> None:
    wide = "x" * 100_000
    for number in range(80):
        cluster.send(topic, [(0, {"n": number, "y": 1, "wide": wide})])
    found = ids(of_numbers(cluster, topic, until="end"))
    assert found == [*range(found[0], 80)] and found[0] > 0
    assert ids(reader_of(of_numbers(cluster, topic, until="end"), place(found[0]))) == found


@pytest.mark.parametrize("ends", [3, 4, 1000])
def test_a_topic_that_is_shorter_than_the_checkpoint_is_a_gap(
    ends: int, cluster: Brokers, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    numbered(cluster, topic, [(number, 0) for number in range(3)])
    assert gaps(cluster, topic, place(ends + 1)) == [0, 1, 2]
    assert "partition 0 ends at offset 3" in caplog.text


def test_a_topic_with_other_messages_is_a_gap(cluster: Brokers, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    numbered(cluster, topic, [(number, 0) for number in range(6)])
    assert gaps(cluster, topic, place(3)) == [0, 1, 2, 3, 4, 5]
    assert "another message stands at offset 2" in caplog.text


def test_a_partition_that_is_gone_is_a_gap(cluster: Brokers, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    numbered(cluster, topic, [(number, 0) for number in range(3)])
    assert gaps(cluster, topic, place(3, partition=9)) == [0, 1, 2]
    assert "has no partition 9 any more" in caplog.text


def test_a_topic_that_is_gone_is_a_gap(
    cluster: Brokers, topic: str, on_pause: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "GONE_S", 0.3)
    with pytest.raises(DataError, match="was removed, or the brokers are others"):
        [*reader_of(of_numbers(cluster, topic), place(3))]


# ---- brokers


def test_a_topic_that_is_not_there_is_waited_for_unless_it_should_end(
    cluster: Brokers, topic: str, on_pause: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DataError, match="there is no such topic"):
        [*of_numbers(cluster, topic, until="end")]
    pauses = itertools.count()
    on_pause(lambda seconds: numbered(cluster, topic, [(7, 0)]) if next(pauses) == 2 else time.sleep(seconds))
    assert ids([next(reader_of(of_numbers(cluster, topic)))]) == [7]
    assert "is not there yet" in caplog.text


@pytest.mark.parametrize(("servers", "words"), [("127.0.0.1:1", "refused"), ("no-such-host.invalid:9092", "resolve")])
def test_brokers_that_never_answer_are_an_error_with_the_reason(
    servers: str, words: str, on_pause: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(kafka, "ANSWER_S", 1.5)
    with pytest.raises(DataError, match=words) as error:
        next(reader_of(Kafka(servers, "clicks", target="y", ids=["n"])))
    assert error.value.code == "data/no-broker"
    assert servers in str(error.value) and "trying again" in caplog.text


def test_an_outage_is_told_and_waited_for(
    topic: str, on_pause: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kafka, "LOOK_S", 0.0)
    with brokers() as own:
        numbered(own, topic, [(0, 0), (1, 0)])
        reader = reader_of(of_numbers(own, topic))
        assert ids([next(reader), next(reader)]) == [0, 1]
        own.freeze()

        def pause(seconds: float) -> None:
            if "no broker of" in caplog.text:
                own.thaw()
                on_pause(lambda seconds: numbered(own, topic, [(2, 0)]) or on_pause(time.sleep))

        on_pause(pause)
        assert ids([next(reader)]) == [2]
        assert "no broker of" in caplog.text and "answer again" in caplog.text


# ---- arguments

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "servers": ({"servers": ""}, "servers must be a text"),
    "topic": ({"topic": 7}, "topic must be a text"),
    "text as columns": ({"columns": "ab"}, "columns must be a list"),
    "columns twice": ({"columns": ["n", "n"]}, "columns must be a list"),
    "columns of libsvm": ({"target": None, "ids": [], "columns": ["n", "y"]}, "need a target"),
    "on_bad_message": ({"on_bad_message": "no"}, "on_bad_message must be one of"),
    "until": ({"until": "now"}, "until must be one of"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_told(name: str) -> None:
    given, words = WRONG[name]
    with pytest.raises(UsageError, match=words):
        Kafka(**{"servers": "none", "topic": "clicks", "target": "y", "ids": ["n"], **given})


def test_a_column_that_messages_lack_is_told(cluster: Brokers, topic: str) -> None:
    cluster.send(topic, [(0, b"1,2")])
    with pytest.raises(UsageError, match="there is no column 'n'"):
        [*of_numbers(cluster, topic, columns=["m", "y"], until="end")]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"no.such.setting": 1}, "no.such.setting"),
        ({"fetch.min.bytes": "many"}, "fetch.min.bytes"),
        ({"enable.auto.commit": True}, "enable.auto.commit is set by hogwild"),
    ],
)
def test_wrong_settings_are_told(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        next(iter(Kafka("127.0.0.1:1", "clicks", target="y", ids=["n"], settings=settings)))


def test_settings_may_stand_in_a_file(cluster: Brokers, topic: str, tmp_path: Path) -> None:
    numbered(cluster, topic, [(0, 0)])
    path = file_of(tmp_path, "# of our cluster\n\nfetch.wait.max.ms = 10\nclient.id=us=them\n", "client.properties")
    assert ids(of_numbers(cluster, topic, until="end", settings=str(path))) == [0]
    with pytest.raises(DataError, match="NAME=VALUE"):
        next(iter(of_numbers(cluster, topic, settings=file_of(tmp_path, "nothing\n", "wrong"))))
    with pytest.raises(NotFoundError):
        of_numbers(cluster, topic, settings=str(tmp_path / "none"))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "confluent_kafka", None)
    with pytest.raises(UsageError, match=r"pip install 'hogwild\[kafka\]'"):
        Kafka("none", "clicks", target="y", ids=["n"])


@pytest.mark.parametrize("is_json", [True, False])
def test_messages_that_are_texts_are_those_of_a_followed_file_from_any_place_on(
    is_json: bool, cluster: Brokers, topic: str, tmp_path: Path
) -> None:
    """Also from the middle of a message that has several records; its lines are one text."""
    texts = ["a b c d e", "f", "7 g\nh", "i j k"]
    lines = [json.dumps({"t": text}) if is_json else text.replace("\n", " ") for text in texts]
    cluster.send(topic, [(0, {"t": text} if is_json else text.encode()) for text in texts])
    given: Any = {"text": "t" if is_json else True, "longest": 2, "until": "end"}
    whole = plain(Follow(file_of(tmp_path, "\n".join(lines)), **given))
    data, run = Kafka(cluster.servers, topic, **given), tmp_path / "run"
    run.mkdir()
    states, records, reader = [], [], reader_of(data, run=run)
    while True:
        states.append(reader.state_dict())
        if (record := next(reader, None)) is None:
            break
        records.append(record)
    assert plain(records) == whole and len(whole) == 8
    for count, state in enumerate(states):
        assert plain(reader_of(data, state, run)) == whole[count:]


def test_a_message_that_is_no_text_is_an_error_with_its_place_or_left_out(
    cluster: Brokers, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.send(topic, [(0, {"t": "a b c"}), (0, {"t": 7}), (0, {"t": "d"})])
    given: Any = {"text": "t", "longest": 2, "until": "end"}
    with pytest.raises(DataError, match="partition 0, offset 1: 't': is a int, not a text"):
        [*Kafka(cluster.servers, topic, **given)]
    assert len([*Kafka(cluster.servers, topic, on_bad_message="skip", **given)]) == 3
