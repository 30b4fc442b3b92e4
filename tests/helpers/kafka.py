"""A cluster of Kafka as librdkafka ships it for tests, in a process of its own: real protocol and connections, logs in
memory. A topic appears with its first message, with PARTITIONS partitions, each of which keeps at most 5 MB."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

PARTITIONS = 4
CLUSTER = """
import sys
from confluent_kafka import Producer
brokers = Producer({"test.mock.num.brokers": 2, "bootstrap.servers": "none", "log_level": 0})
found = brokers.list_topics(timeout=30).brokers.values()
print(",".join(f"{one.host}:{one.port}" for one in found), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Brokers:
    """A running cluster. `servers`: as clients name it."""

    servers: str
    process: "subprocess.Popen[str]"

    def send(self, topic: str, messages: Iterable[tuple[int, Any]]) -> None:
        """Append messages, (partition, value) each: bytes, None, or an object that becomes JSON."""
        from confluent_kafka import Producer

        failed = list[Any]()
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 0, "log_level": 0})
        for partition, value in messages:
            content = value if isinstance(value, bytes | None) else json.dumps(value).encode()
            while True:
                try:
                    producer.produce(
                        topic, content, partition=partition, on_delivery=lambda error, _: failed.append(error)
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0
        assert not any(failed), failed

    def freeze(self) -> None:
        """Let it answer nobody."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def brokers() -> Iterator[Brokers]:
    """Run a cluster."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        try:
            yield Brokers(process.stdout.readline().strip(), process)
        finally:
            process.kill()
