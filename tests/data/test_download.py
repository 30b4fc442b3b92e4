"""Published files fetched from a real server on this machine: one that is right, and every way of being wrong."""

import gzip
import hashlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hogwild.data import FashionMnist, Mnist, locate, mnist
from hogwild.data.mnist import Published
from hogwild.errors import DataError, HogwildError, NotFoundError, UsageError
from hogwild.storage.artifact_cache import cache_root
from tests.data.test_data import IMAGES, LABELS, idx
from tests.helpers.processes import PATIENCE_S

NAMES = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
FILES = {name: gzip.compress(idx(values), mtime=0) for name, values in zip(NAMES, (IMAGES, LABELS), strict=True)}
MD5 = {name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in FILES.items()}
Answer = Callable[[BaseHTTPRequestHandler, bytes], None]


def right(handler: BaseHTTPRequestHandler, content: bytes) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


def damaged(handler: BaseHTTPRequestHandler, content: bytes) -> None:
    right(handler, content[:-1] + b"!")


def cut_off(handler: BaseHTTPRequestHandler, content: bytes) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content[: len(content) // 2])


def not_there(handler: BaseHTTPRequestHandler, _: bytes) -> None:
    handler.send_error(404)


def no_http(handler: BaseHTTPRequestHandler, _: bytes) -> None:
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n")


def elsewhere(handler: BaseHTTPRequestHandler, _: bytes) -> None:
    handler.send_response(302)
    handler.send_header("Location", f"/right/{handler.path.rpartition('/')[2]}")
    handler.end_headers()


class Server(ThreadingHTTPServer):
    """The first part of an address says how it is answered."""

    daemon_threads = True
    answers: dict[str, Answer] = {  # noqa: RUF012
        "right": right, "damaged": damaged, "cut": cut_off, "missing": not_there, "ssh": no_http, "moved": elsewhere,
    }  # fmt: skip

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_over = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)

    def mirror(self, kind: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{kind}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        _, kind, name = self.path.split("/")
        self.server.asked.append(self.path)
        if kind == "stalled":  # half of it, and then nothing until the test ends
            self.send_response(200)
            self.end_headers()
            self.wfile.write(FILES[name][:10])
            self.wfile.flush()
            self.server.is_over.wait(PATIENCE_S)
        else:
            Server.answers[kind](self, FILES.get(name, b""))

    def log_message(self, *_: object) -> None:
        """Not among the test's own words."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """Two small files are what Mnist is published as; no folder is named, and no proxy is asked."""
    monkeypatch.delenv("HOGWILD_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(Mnist, "published", tuple(Published(name, MD5[name]) for name in NAMES))
    serving = Server()
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield serving
    serving.is_over.set()
    serving.shutdown()
    thread.join()
    serving.server_close()


def test_what_is_not_there_is_fetched_checked_and_kept(server: Server, tmp_path: Path) -> None:
    dataset = Mnist(download=True, mirror=server.mirror("right") + "/")
    assert dataset.tensors[1].tolist() == LABELS.tolist()
    folder = tmp_path / "cache" / "hogwild" / "mnist"
    assert sorted(os.listdir(folder)) == sorted(NAMES)
    assert server.asked == [f"/right/{name}" for name in NAMES]
    Mnist(download=True, mirror=server.mirror("right"))  # from the folder now
    assert len(server.asked) == 2


def test_files_go_to_the_root_or_the_data_sets_own_folder(server: Server, tmp_path: Path) -> None:
    Mnist(root=tmp_path / "mine", download=True, mirror=server.mirror("right"))
    locate.set_data_dir(tmp_path / "data")
    Mnist(download=True, mirror=server.mirror("right"))
    for folder in (tmp_path / "mine", tmp_path / "data" / "mnist"):
        assert sorted(os.listdir(folder)) == sorted(NAMES)
    assert len(Mnist()) == len(IMAGES)  # without download, from DIR/mnist


def test_only_what_is_missing_is_fetched(server: Server, tmp_path: Path) -> None:
    (tmp_path / NAMES[0].removesuffix(".gz")).write_bytes(idx(IMAGES))
    assert len(Mnist(root=tmp_path, download=True, mirror=server.mirror("right"))) == len(IMAGES)
    assert server.asked == [f"/right/{NAMES[1]}"]


def test_mirrors_are_tried_in_order(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("missing", "damaged", "cut", "ssh", "moved")
    monkeypatch.setattr(Mnist, "mirrors", tuple(server.mirror(kind) for kind in kinds))
    assert len(Mnist(root=tmp_path, download=True)) == len(IMAGES)
    asked = [f"/{kind}/{NAMES[0]}" for kind in (*kinds, "right")]
    assert server.asked[:6] == asked
    assert sorted(os.listdir(tmp_path)) == sorted(NAMES)


def refused() -> str:
    """An address at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


WRONG: dict[str, tuple[type[HogwildError], str]] = {
    "damaged": (DataError, rf"sent [\d,]+ bytes with the md5 sum [0-9a-f]{{32}}; it must be {MD5[NAMES[0]]}"),
    "cut": (DataError, r"md5 sum|the connection ended after"),
    "missing": (NotFoundError, r"answers 404 Not Found"),
    "ssh": (NotFoundError, r"SSH-2.0"),
    "stalled": (NotFoundError, r"no answer for 0.2 s"),
    "nobody": (NotFoundError, r"Connection refused"),
    "no address": (NotFoundError, r"unknown url type"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_cannot_be_fetched_is_named_with_address_and_folder_and_not_kept(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(mnist.fetch, "__defaults__", (0.2,))
    mirror = {"nobody": refused(), "no address": "example"}.get(kind) or server.mirror(kind)
    error, words = WRONG[kind]
    with pytest.raises(error, match=words) as caught:
        Mnist(root=tmp_path, download=True, mirror=mirror)
    message = str(caught.value)
    assert message.startswith(
        f"Mnist(split='train'): cannot download {NAMES[0]} into {tmp_path}:\n  {mirror}/{NAMES[0]}: "
    )
    assert "copy the file into" in message and MD5[NAMES[0]] in message
    assert caught.value.code == ("data/checksum" if error is DataError else "data/download")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_written_to_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot write into .*/file/data: Not a directory; choose another folder"):
        Mnist(root=tmp_path / "file" / "data", download=True, mirror=server.mirror("right"))


def test_an_answer_without_an_end_is_not_received_for_ever(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mnist, "MOST_BYTES", 100)
    with pytest.raises(DataError, match=r"sends more than 100 bytes"):
        Mnist(root=tmp_path, download=True, mirror=server.mirror("right"))
    assert os.listdir(tmp_path) == []


def test_nothing_is_asked_of_the_net_without_download(server: Server, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"download: true fetches them"):
        Mnist(root=tmp_path)
    with pytest.raises(UsageError, match=r"mirror has no effect without download"):
        Mnist(root=tmp_path, mirror=server.mirror("right"))
    assert server.asked == []


def test_the_published_sums_are_those_of_the_real_files() -> None:
    folder = locate.data_dir()
    if folder is None or not (folder / "mnist").is_dir():
        pytest.skip("HOGWILD_DATA has no folder mnist: no real files to compare with")
    for file in Mnist.published:
        assert hashlib.sha256((folder / "mnist" / file.name).read_bytes()).hexdigest() == file.checksum
    assert [len(file.checksum) for file in FashionMnist.published] == [32] * 4
    assert {file.name for file in FashionMnist.published} == {file.name for file in Mnist.published}


def test_the_users_cache_is_where_the_desktop_keeps_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for named in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", named)
        assert cache_root() == tmp_path / ".cache" / "hogwild"


def test_what_a_killed_download_left_goes_a_day_later_and_nothing_else(server: Server, tmp_path: Path) -> None:
    old, young, another = (tmp_path / f".tmp-{name}" for name in (f"{NAMES[0]}-1", f"{NAMES[0]}-2", "mine-3"))
    for file in (old, young, another):
        file.write_bytes(b"half")
    for file in (old, another):
        os.utime(file, (1e9, 1e9))
    Mnist(root=tmp_path, download=True, mirror=server.mirror("right"))
    assert sorted(os.listdir(tmp_path)) == sorted([*NAMES, young.name, another.name])
