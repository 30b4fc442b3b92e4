"""A topic of Apache Kafka as a stream without an end: see docs/streaming.md.

    FollowedTopic ── messages ──► the readers of `Follow` ──► rows, one by one ──► loader k of n: partitions k, k+n, …
         │
         ├── assigned by us; the next offset of each partition is the state of the iterator, so it lies in checkpoints
         └── which partition came next is in RUN/kafka/, so that a resume makes the same batches (arrival_order.py)

There is no consumer group: brokers neither move partitions between loaders nor keep their offsets, so nothing but the
checkpoint decides which message comes next. Where reading begins, also after an outage, it begins with the last message
that was read before: another one there, or none, is a gap, as if a followed file had been overwritten."""

import hashlib
import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch.utils.data import get_worker_info

from hogwild.data.arrival_order import UNKNOWN, ArrivalOrder, Run
from hogwild.data.csv.parse import Column
from hogwild.data.follow import (
    BadRecords,
    Follow,
    Follower,
    JsonReader,
    LibSvmReader,
    LineRows,
    SentenceReader,
    TableReader,
    TextRecords,
    joined,
)
from hogwild.data.followed_file import Ended
from hogwild.data.input_rows import given_arguments
from hogwild.data.locate import bad_argument, choice, find_file, read, require
from hogwild.data.text_keys import NAMES, NameFile
from hogwild.data.text_parsing import Format, shown
from hogwild.errors import DataError

FOLDER = "kafka"  # in the run directory
MOST = 4096  # messages taken at once
ASK_S = 1.0  # limit of one question to a broker; Ctrl-C waits for it
LOOK_S = 30.0  # between two looks for new partitions
ANSWER_S = 60.0  # in which a broker must have answered once
GONE_S = 30.0  # that a topic of which messages were read may be unknown, as to a broker that starts
ROOM = 64  # partitions that may appear without a larger state
OURS = (  # settings that decide which message comes next
    *("bootstrap.servers", "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset"),
    *("enable.partition.eof", "error_cb"),
)
log = logging.getLogger(__name__)


class Kafka(TextRecords):
    """Messages of a topic of Apache Kafka, from the earliest that is kept on and then as they come.

    A message is one record: a JSON object; with `columns` a line of CSV; without `target` a line of libsvm; with `text`
    a text, of one record or several. The fields of a record are those of `Follow`.

    Each loader reads the partitions p with p % loaders = its number. The next offset of each partition is kept in every
    checkpoint, and nowhere else: nothing is committed to the brokers. New partitions are read from their beginning on.
    Brokers that do not answer are waited for; if none has answered within a minute of the start it is an error.

    Needs confluent-kafka, pyarrow for CSV and texts, numba for libsvm. Raises UsageError; the iterator DataError with
    topic, partition, offset, value and rule.

    Arguments:
        servers: some of the brokers, "host:port, host:port".
        topic: its name. One that is not there yet is waited for.
        target: column to predict, or a list of columns; [] with `ids` where each message is an event; null for libsvm.
        inputs: columns of numbers, and of those in `categorical`.
        categorical: as in Csv.
        ids: columns of names, each for a table of its own.
        features: columns that have one table together, as in Clicks.
        hash: number of rows of that table that the features share by a stable hash; null: a key of 63 bits for each.
        missing: fail, drop (leave the row out), or a number for missing inputs. A target or an id is never filled in.
        target_type: float, or class: whole numbers from 0 on.
        weight: column of the weights of rows.
        text: true: each message is a text; or the key of the texts in JSON objects.
        longest: words of a record of texts.
        columns: names of the columns of CSV messages; null: messages are JSON.
        until: "stop": follow the topic until the job is stopped; "end": stop at its end.
        on_gap: fail, or go_on with a warning where messages may be missing: brokers have removed them before they were
            read (retention), or the topic was created anew.
        on_bad_message: fail, or skip messages that cannot be used, with warnings.
        delimiter: of CSV messages, one character (tab: "\\t").
        decimal: of CSV messages, "." or ",".
        settings: of librdkafka, as `security.protocol`; or a file of them, NAME=VALUE lines. A run keeps a map, with
            the passwords in it, but not the content of a file."""

    kind_of_file = Follow  # that reads files to predict
    _epoch = 0

    def __init__(
        self,
        servers: str,
        topic: str,
        target: Column | Sequence[Column] | None = None,
        inputs: Sequence[Column] = (),
        categorical: Mapping[Column, Any] | None = None,
        ids: Sequence[Column] = (),
        features: Sequence[Column] = (),
        hash: int | None = None,
        missing: str | float = "fail",
        target_type: Literal["float", "class"] = "float",
        weight: Column | None = None,
        text: str | bool | None = None,
        longest: int = 64,
        columns: Sequence[str] | None = None,
        until: Literal["stop", "end"] = "stop",
        on_gap: Literal["fail", "go_on"] = "fail",
        on_bad_message: Literal["fail", "skip"] = "fail",
        delimiter: str = ",",
        decimal: str = ".",
        settings: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    ) -> None:
        self.init_args = given_arguments(self, locals())
        who = f"Kafka(topic={topic!r})"
        for name, given in (("servers", servers), ("topic", topic)):
            if not isinstance(given, str) or not given.strip():
                raise bad_argument(f"{who}: {name} must be a text, got {given!r}")
        choice(who, "on_bad_message", on_bad_message, ("fail", "skip"))
        super().__init__(
            who, target, inputs, categorical, ids, features, hash, missing, target_type, weight, text, longest, until,
            on_gap, on_bad_message, Format(delimiter, decimal),
        )  # fmt: skip
        if columns is not None and (isinstance(columns, str) or len({*map(str, columns)}) < max(2, len(columns))):
            raise bad_argument(f"{who}: columns must be a list of at least two different names, got {columns!r}")
        if columns is not None and target is None:
            raise bad_argument(f"{who}: columns are of CSV messages, which need a target")
        require("confluent_kafka", "hogwild.data.Kafka", "confluent-kafka", "kafka")
        self.servers, self.topic = servers, topic
        self.columns = None if columns is None else [*map(str, columns)]
        self.path = Path(f"Kafka topic {topic!r}")
        self.settings: Path | dict[str, Any]
        if isinstance(settings, str | os.PathLike):
            advice = "It has settings of librdkafka, a line NAME=VALUE each."
            self.settings = find_file(who, settings, None, advice)
        else:
            self.settings = dict(settings or {})
        if columns is not None:
            require("pyarrow.csv", "hogwild.data.Kafka of CSV messages", "pyarrow", "csv")

    @staticmethod
    def for_inputs(arguments: Mapping[str, Any], columns: Sequence[str] | None) -> dict[str, Any]:
        """Return the arguments of `Follow` for a file to predict."""
        ours = ("servers", "topic", "columns", "on_bad_message", "settings")
        return Follow.for_inputs({name: one for name, one in arguments.items() if name not in ours}, columns)

    def place_of(self, partition: int, offset: int) -> str:
        """Return the place of a message for errors."""
        return f"{self.path}, partition {partition}, offset {offset:,}"

    def set_epoch(self, epoch: int) -> None:
        """Tell the epoch that is read next: each has an order of its own."""
        self._epoch = epoch

    def __iter__(self) -> Follower:
        info = get_worker_info()
        shard, shards = (0, 1) if info is None else (info.id, info.num_workers)
        names = NAMES if shard == 0 else NAMES.replace(".", f"-{shard}.")  # each file has one writer
        run = self.run_dir_of_job
        order = ArrivalOrder(Path(run) / FOLDER / f"{self._epoch:06d}-{shard}" if run else None)
        return Follower(FollowedTopic(self, order, shard, shards), lambda texts: MessageReader(self, texts), run, names)


# ---- messages -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """By partition: the next offset, and a hash of the message before it; b"" if it need not be there. Partitions of
    which nothing was read are not in it."""

    partitions: Mapping[int, tuple[int, bytes]] = field(default_factory=dict)
    given: int = 0  # messages
    known: int = 0  # partitions of the topic

    def state(self) -> dict[str, Any]:
        """Return it as plain values, of a constant size until many partitions appear."""
        room = ROOM + self.known - len(self.partitions)
        partitions = {one: [*place] for one, place in self.partitions.items()}
        return {"partitions": partitions, "given": self.given, "room": bytes(40 * room)}

    def without(self, partitions: Collection[int]) -> "TopicPlace":
        left = {one: at for one, at in self.partitions.items() if one not in partitions}
        return replace(self, partitions=left)


class Messages:
    """Messages in the order in which they came, of several partitions; `begin`: the place before them."""

    content = b"messages"  # of a file it may be empty

    def __init__(self, messages: Sequence[Any], begin: TopicPlace) -> None:
        self.messages, self._begin = messages, begin
        self._last, self._looked_at = dict[int, Any](), 0  # message by partition, of the first messages

    def place(self, end: int, count: int) -> TopicPlace:
        """Return the place behind the first `count` messages."""
        if count < self._looked_at:
            self._last, self._looked_at = {}, 0
        for one in self.messages[self._looked_at : count]:
            self._last[one.partition()] = one
        self._looked_at = count
        found = {partition: (one.offset() + 1, _hash_of(one)) for partition, one in self._last.items()}
        return replace(self._begin, partitions={**self._begin.partitions, **found}, given=self._begin.given + count)


def _hash_of(message: Any) -> bytes:
    content = repr((message.timestamp(), message.key(), message.value())).encode()
    return hashlib.blake2b(content, digest_size=16).digest()


class Trouble:
    """Findings of a consumer's own thread. Not a part of the topic: the reference cycle would keep the consumer
    alive until garbage collection."""

    def __init__(self) -> None:
        self.is_down = False  # no broker answers
        self.why = ""

    def note(self, error: Any) -> None:
        if error.name() == "_ALL_BROKERS_DOWN":
            self.is_down = True
        else:
            self.why = error.str()


class FollowedTopic:
    """The partitions of loader `shard` of `shards`. No parsing here. For one process, unpicklable once it was read.

    Raises UsageError for wrong settings, DataError for a gap, or if no broker answers."""

    def __init__(self, of: Kafka, order: ArrivalOrder, shard: int, shards: int) -> None:
        self._of, self._order, self._shard, self._shards = of, order, shard, shards
        self._consumer: Any = None
        self._place = TopicPlace()  # behind what was given away
        self._told = set[str]()
        self._begin()

    def _begin(self) -> None:
        self._trouble = Trouble()
        self._assigned: list[int] | None = None
        self._waiting = dict[int, deque[Any]]()  # messages that came before their turn, by partition
        self._held_back = set[int]()  # partitions with many of them
        self._unchecked = set[int]()  # partitions whose next message must be the last one that was read
        self._again = set[int]()  # partitions that begin at another place
        self._out_of_range = set[int]()
        self._at_end = set[int]()
        self._opened_s = time.monotonic()
        self._looked_s = float("-inf")  # for new partitions
        self._gone_s: float | None = None  # since when the topic is not there
        self._has_answered = self._is_down_told = False

    @property
    def place(self) -> TopicPlace:
        return self._place

    def place_of(self, state: Mapping[str, Any]) -> TopicPlace:
        """Return the place that has this state."""
        partitions = {int(one): (int(at), bytes(was)) for one, (at, was) in state["partitions"].items()}
        return TopicPlace(partitions, int(state["given"]))

    def go_to(self, place: TopicPlace) -> None:
        """Go on from a place."""
        self.close()
        self._place = place
        self._order.go_to(place.given)

    def read(self) -> "Messages | type[Ended] | None":
        """Return the next messages, None if there are none yet, or `Ended`. Waits for a broker for at most ASK_S."""
        if self._consumer is None:
            self._consumer = self._opened()
        if not self._look() or not self._returned_to_range():
            return None
        found = list[Any]()
        for one in self._consumer.consume(MOST, 0):
            if one.error() is not None:
                self._heed(one)
            elif self._is_next(one):
                found.append(one)
                self._at_end.discard(one.partition())
        if self._trouble.is_down:  # what came may be of another cluster: it is read again, and compared
            return None
        chosen = self._in_order(found)
        messages = Messages(chosen, self._place)
        self._place = messages.place(0, len(chosen))
        if self._again:
            self._assign()
        if chosen:
            return messages
        return Ended if self._of.until == "end" and self._at_end >= {*(self._assigned or ())} else None

    def close(self) -> None:
        """Leave the brokers: the next read begins at the place."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None
        self._begin()

    def __del__(self) -> None:
        if self.__dict__.get("_consumer") is not None:
            self._consumer.close()

    # ---- brokers

    def _opened(self) -> Any:
        import confluent_kafka

        of = self._of
        settings = _settings_in(of.settings) if isinstance(of.settings, Path) else of.settings
        if taken := [name for name in settings if name in OURS]:
            raise bad_argument(f"{of.who}: settings: {taken[0]} is set by hogwild: leave it out")
        usual = {"group.id": "hogwild", "client.id": "hogwild", "log_level": 0, "queued.max.messages.kbytes": 16384}
        ours = {
            "bootstrap.servers": of.servers,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "error_cb": self._trouble.note,
        }
        try:
            return confluent_kafka.Consumer({**usual, **settings, **ours})
        except (confluent_kafka.KafkaException, TypeError, ValueError) as error:
            raise bad_argument(f"{of.who}: settings, servers or topic cannot be used: {_words(error)}") from error

    def _look(self) -> bool:
        """Look for brokers and new partitions, if it is time to; return False where there is nothing to read yet."""
        import confluent_kafka

        now_s = time.monotonic()
        if self._assigned is not None and not self._trouble.is_down and now_s - self._looked_s < LOOK_S:
            return True
        try:
            found = self._consumer.list_topics(self._of.topic, timeout=ASK_S).topics[self._of.topic]
        except confluent_kafka.KafkaException as error:
            self._consumer.consume(1, 0) if self._assigned is None else None  # for the reason: calls `note`
            self._no_answer(self._trouble.why or _words(error))
            return False
        self._looked_s, self._has_answered = now_s, True
        if self._is_down_told:
            log.warning("%s: the brokers answer again", self._of.path)
            self._is_down_told = False
        if found.error is not None or not found.partitions:
            return self._is_missing(found.error)
        self._gone_s = None
        self._divide(sorted(found.partitions))
        return True

    def _no_answer(self, why: str) -> None:
        of, silent_s = self._of, time.monotonic() - self._opened_s
        self._trouble.is_down = True
        if not self._has_answered and silent_s > ANSWER_S:
            raise DataError(
                f"{of.path}: no broker of {of.servers} has answered in {silent_s:.0f} s: {why}. Check servers, and "
                "settings (security.protocol, …)",
                code="data/no-broker",
            )
        if not self._is_down_told:
            log.warning("%s: no broker of %s answers (%s); trying again until one does", of.path, of.servers, why)
            self._is_down_told = True

    def _is_missing(self, error: Any) -> bool:
        """Do what is to be done if there is no such topic, or it cannot be read: return False, to wait for it."""
        of = self._of
        if error is not None and error.name() != "UNKNOWN_TOPIC_OR_PART":
            if error.retriable():
                return False
            raise DataError(f"{of.path}: cannot be read: {error.str()}", code="data/unreadable")
        if self._place.partitions:
            now_s = time.monotonic()
            self._gone_s = now_s if self._gone_s is None else self._gone_s
            if now_s - self._gone_s > GONE_S:
                self._gap(
                    "was removed, or the brokers are others, after messages of it were read", *self._place.partitions
                )
            return False
        if of.until == "end":
            raise DataError(f"{of.path}: there is no such topic", code="data/not-found")
        self._tell(f"{of.path}: is not there yet; waiting for it")
        return False

    def _divide(self, partitions: Sequence[int]) -> None:
        """Assign our partitions, if they have changed, or the brokers were away."""
        lost = [one for one in self._place.partitions if one not in partitions]
        if lost:
            self._gap(f"has no partition {lost[0]} any more: it was created anew", *lost)
        self._place = replace(self._place, known=len(partitions))
        ours = [one for one in partitions if one % self._shards == self._shard]
        if not ours:
            self._tell(f"{self._of.path}: has {len(partitions)} partitions, so loader {self._shard} has none to read")
        if self._assigned is not None and (new := [one for one in ours if one not in self._assigned]):
            log.info("%s: has new partitions, read from their beginning: %s", self._of.path, ", ".join(map(str, new)))
        if ours != self._assigned or self._trouble.is_down:
            self._assigned, self._trouble.is_down = ours, False
            self._assign()

    def _assign(self) -> None:
        """Begin at the last message that was read of each partition, to compare it."""
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        self._unchecked, self._again, self._at_end, self._held_back = set(), set(), set(), set()
        self._waiting.clear()
        begins = []
        for one in self._assigned or ():
            at, was = self._place.partitions.get(one, (OFFSET_BEGINNING, b""))
            if was:
                self._unchecked.add(one)
            begins.append(TopicPartition(self._of.topic, one, at - 1 if was else at))
        self._consumer.assign(begins)

    # ---- messages, and what comes in their place

    def _in_order(self, found: list[Any]) -> list[Any]:
        """Return those whose turn it is: in the order of an earlier attempt, as far as it came, then as they come."""
        if self._order.next is None and not self._waiting:
            chosen = found
        else:
            for one in found:
                self._waiting.setdefault(one.partition(), deque()).append(one)
            chosen = self._given_again()
            if self._order.next is not None:
                self._hold_back()
                return chosen
            found = [one for each in self._waiting.values() for one in each]
            self._waiting.clear()
            self._hold_back()
            chosen += found
        if found:
            runs = ([*each] for _, each in itertools.groupby(found, lambda one: one.partition()))
            self._order.add(Run(each[0].partition(), len(each), each[-1].offset() + 1) for each in runs)
        return chosen

    def _given_again(self) -> list[Any]:
        """Return the waiting messages that an earlier attempt gave away next."""
        chosen = list[Any]()
        while (run := self._order.next) is not None:
            waiting = self._waiting.get(run.partition, deque())
            many = 0
            while many < run.many and waiting and waiting[0].offset() < run.end:
                chosen.append(waiting.popleft())
                many += 1
            if many:
                self._order.take(many)
            elif run.partition == UNKNOWN:
                self._order.forget_rest()
            elif waiting or run.partition in self._at_end:
                self._gap(
                    f"messages of partition {run.partition} before {run.end:,} that were read are removed",
                    run.partition,
                )
            else:
                break
        return chosen

    def _hold_back(self) -> None:
        """Let brokers send no more of partitions with many messages before their turn."""
        import confluent_kafka

        full = {one for one, waiting in self._waiting.items() if len(waiting) >= MOST}
        for act, those in (
            (self._consumer.pause, full - self._held_back),
            (self._consumer.resume, self._held_back - full),
        ):
            if those:
                act([confluent_kafka.TopicPartition(self._of.topic, one) for one in those])
        self._held_back = full

    def _is_next(self, message: Any) -> bool:
        """Return whether it was not read before. It may stand further on than the place: compaction leaves gaps."""
        one = message.partition()
        if one in self._again:
            return False
        if one not in self._unchecked:
            return True
        self._unchecked.discard(one)
        at, was = self._place.partitions[one]
        if message.offset() >= at:
            return True
        if _hash_of(message) != was:
            self._gap(f"another message stands at offset {at - 1:,} of partition {one} than was read", one)
        return False

    def _heed(self, message: Any) -> None:
        """Do what is to be done about an error or the end of a partition."""
        error, one = message.error(), message.partition()
        name = error.name()
        if name == "_PARTITION_EOF":
            self._at_end.add(one)
            if one in self._unchecked and message.offset() < self._place.partitions[one][0]:
                self._shorter(one, message.offset())
        elif name == "_AUTO_OFFSET_RESET":
            self._out_of_range.add(one)
        elif name in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID"):
            self._trouble.is_down = True  # look, and compare
        elif name.endswith("AUTHORIZATION_FAILED") or error.fatal():
            raise DataError(f"{self._of.path}: cannot be read: {error.str()}", code="data/unreadable")
        else:
            self._tell(f"{self._of.path}, partition {one}: {error.str()}; trying again")

    def _returned_to_range(self) -> bool:
        """Find out why the next offsets are not there; return False if no broker says it."""
        import confluent_kafka

        for one in sorted(self._out_of_range):
            try:
                where = confluent_kafka.TopicPartition(self._of.topic, one)
                low, high = self._consumer.get_watermark_offsets(where, timeout=ASK_S)
            except confluent_kafka.KafkaException:
                return False
            at, was = self._place.partitions.get(one, (low, b""))
            if high < at:
                self._shorter(one, high)
            elif low > at:
                self._gap(f"messages {at:,} to {low - 1:,} of partition {one} were removed before they were read", one)
            elif low == at and was:  # what was read is removed, and nothing else
                self._place = replace(self._place, partitions={**self._place.partitions, one: (at, b"")})
            self._again.add(one)
            self._out_of_range.discard(one)
        if self._again:
            self._assign()
        return True

    def _shorter(self, one: int, end: int) -> None:
        at = self._place.partitions[one][0]
        self._gap(f"partition {one} ends at offset {end:,}, but {at:,} were read: it was created anew, or cut", one)

    def _gap(self, why: str, *partitions: int) -> None:
        """Fail, or warn and go on with the beginning of these partitions."""
        if self._of.on_gap == "fail":
            raise DataError(
                f"{self._of.path}: {why}. Messages may be missing; on_gap: go_on goes on with what is there",
                code="data/gap",
            )
        log.warning("%s: %s; going on with what is there (on_gap: go_on)", self._of.path, why)
        self._place = self._place.without(partitions)
        self._order.forget_rest()
        self._unchecked -= {*partitions}
        self._again |= {*partitions}

    def _tell(self, words: str) -> None:
        if words not in self._told:
            self._told.add(words)
            log.warning(words)


def _settings_in(path: Path) -> dict[str, str]:
    """Return the settings in a file of lines NAME=VALUE, as Kafka's own tools read them. Raises DataError."""
    lines = read(path).decode("utf-8", "replace").splitlines()
    pairs = [line.strip().partition("=") for line in lines if line.strip() and line.strip()[0] not in "#!"]
    if odd := [name for name, sign, _ in pairs if not sign]:
        raise DataError(f"{path}: must have lines NAME=VALUE, got {odd[0][:20]!r}", code="data/wrong-format")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _words(error: BaseException) -> str:
    found = error.args[0] if error.args else error
    return str(found.str() if hasattr(found, "str") else found)


# ---- records --------------------------------------------------------------------------------------------------------


class MessageReader:
    """Rows of messages, each a record. They are parsed together, as lines of text, and one by one if one of them cannot
    be used."""

    def __init__(self, of: Kafka, names: NameFile | None) -> None:
        self._of = of
        self._bad = BadRecords("on_bad_message")
        self._lines: JsonReader | TableReader | LibSvmReader | SentenceReader
        if of.text is not None:
            self._lines = SentenceReader(of, names)
        elif of.target is None:
            self._lines = LibSvmReader(of)
        elif of.columns is None:
            self._lines = JsonReader(of, names)
            self._lines.name_columns()
        else:
            self._lines = TableReader(of, names)
            self._lines.name_columns(of.columns)

    def rows(self, messages: Messages, source: FollowedTopic) -> LineRows:
        """Return the rows; `ends` and `counts` number their messages. Raises DataError."""
        try:
            content = b"".join(map(self._line, messages.messages))
            fields, _, counts = self._lines.parsed(content, 0)
        except DataError:
            fields, counts = self._one_by_one(messages.messages)
        return LineRows(fields, counts, counts)

    def _one_by_one(self, messages: Sequence[Any]) -> tuple[Sequence[Any], np.ndarray]:
        parts, counts = list[Sequence[Any]](), list[int]()
        for number, one in enumerate(messages, 1):
            try:
                fields, found, _ = self._lines.parsed(self._line(one), 0)
            except DataError as error:
                place = self._of.place_of(one.partition(), one.offset())
                words = str(error).removeprefix(f"{self._of.path}: ").removeprefix("line 1: ")
                told = DataError(f"{place}: {words}", code=error.code)
                if self._of.on_bad_line == "fail":
                    told = DataError(f"{told} (on_bad_message: skip leaves such messages out)", code=error.code)
                    raise told from error
                self._bad.leave_out(told)
                continue
            if len(found):  # else it lacks a value, and missing: drop leaves it out
                parts.append(fields)
                counts += [number] * len(found)
        return joined(parts), np.array(counts, np.int64)

    def _line(self, message: Any) -> bytes:
        """Return the value as one line. Raises DataError."""
        value: bytes | None = message.value()
        if value is None:
            raise self._refused("has no value: it marks its key as deleted")
        if b"\0" in value:
            what = ", as of Avro, Protobuf or a schema registry; messages must be text" if value[0] == 0 else ""
            raise self._refused(f"has a zero byte{what}: {shown(value)!r}")
        line = value.strip()
        if not line or (self._of.target is None and line.startswith(b"#")):
            raise self._refused("is empty")
        if b"\n" in line:
            if self._of.columns is not None or self._of.target is None:
                raise self._refused(f"has several lines: {shown(value)!r}; a message is one record")
            line = line.replace(b"\n", b" ")  # between the parts of an object: inside a text it would be \\n
        return line + b"\n"

    def _refused(self, words: str) -> DataError:
        return DataError(f"{self._of.path}: {words}", code="data/bad-line")
