"""The cable and the switch between test hosts: one process that makes their network namespaces and moves the packets.

    namespace 0: eth0 (TUN) ──┐                                       ┌── namespace 1: eth0 (TUN)
                              └─► accept: cut? lost? queue full? ─► wait ─► deliver ─┘

A TUN device hands whole IP packets to the descriptor that made it, which works in every namespace from here: no veth,
no netem, no bridge. Namespaces, names and devices belong to this process alone: the kernel removes them with it.

`relay.py PARENT LINK HOSTS MTU SEED` is started by hosts.py. Each line on standard input is a new `Link`, and each is
answered by a line. It ends, with all processes of its hosts, when its input or the process PARENT ends."""

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import signal
import socket
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

NETWORK = bytes([10, 77, 0])  # every namespace is a world of its own: tests that run side by side may share it
DEVICE = "eth0"
TUN = "/dev/net/tun"
TUN_NUMBER = os.makedev(10, 200)
LONGEST_PACKET = 65_535
QUEUE_S = 0.2  # of the traffic that a link of limited rate keeps waiting; more is dropped, as a router does
QUEUE_PACKETS = 16  # of any rate: a few long packets on a slow link are more than QUEUE_S
DEVICE_QUEUE = 10_000  # packets that the kernel keeps for us while other processes have our processor; its own is 500
AT_ONCE = 64  # packets of one device before the next has its turn
POLL_S = 0.01

# linux/sched.h, linux/if_tun.h, linux/sockios.h
CLONE_NEWNET, CLONE_NEWUTS = 0x40000000, 0x04000000
TUNSETIFF, IFF_TUN, IFF_NO_PI, IFF_UP = 0x400454CA, 0x0001, 0x1000, 0x0001
SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFMTU, SIOCSIFTXQLEN = 0x8914, 0x8916, 0x891C, 0x8922, 0x8943


def address(host: int) -> str:
    return socket.inet_ntoa(NETWORK + bytes([host + 1]))


# ---- the network: pure, with the caller's clock ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Link:
    """The cables, all alike. The rate is that of each host in each direction; `cut` are the hosts without a cable."""

    delay_s: float = 0.0  # one way
    rate_bytes_s: float | None = None
    loss: float = 0.0  # share of packets
    cut: tuple[int, ...] = ()

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def of_line(cls, line: str | bytes) -> "Link":
        given = json.loads(line)
        return cls(**{**given, "cut": tuple(given["cut"])})


class Switch:
    """IP packets on their way. `delivered_bytes` (per sender) counts those that arrived."""

    def __init__(self, hosts: int, link: Link, seed: int) -> None:
        self.link = link
        self.delivered_bytes = [0] * hosts
        self._random = random.Random(seed)
        self._sent_until, self._received_until = [0.0] * hosts, [0.0] * hosts
        self._waiting: list[tuple[float, int, int, int, bytes]] = []  # arrival, order, source, target, packet
        self._order = 0

    def accept(self, now: float, source: int, packet: bytes) -> None:
        """Take a packet from a host, which may be the last that is heard of it."""
        target = self._target_of(packet)
        if target is None or self._is_cut(source, target) or self._random.random() < self.link.loss:
            return
        left = self._leaves_at(now, source, target, len(packet))
        if left is not None:
            self._order += 1
            heapq.heappush(self._waiting, (left + self.link.delay_s, self._order, source, target, packet))

    def deliver(self, now: float) -> Iterator[tuple[int, bytes]]:
        """Yield the packets that have arrived, with the host they are for."""
        while self._waiting and self._waiting[0][0] <= now:
            _, _, source, target, packet = heapq.heappop(self._waiting)
            if not self._is_cut(source, target):
                self.delivered_bytes[source] += len(packet)
                yield target, packet

    def wait_s(self, now: float) -> float | None:
        """Return the time until the next arrival; None if nothing is on its way."""
        return max(0.0, self._waiting[0][0] - now) if self._waiting else None

    def _target_of(self, packet: bytes) -> int | None:
        if packet[0] >> 4 != 4 or packet[16:19] != NETWORK or not 1 <= packet[19] <= len(self.delivered_bytes):
            return None  # IPv6, broadcast
        return packet[19] - 1

    def _is_cut(self, source: int, target: int) -> bool:
        cut = self.link.cut
        return bool(cut) and (source in cut or target in cut)

    def _leaves_at(self, now: float, source: int, target: int, size: int) -> float | None:
        """Return when the last byte is through both cables, which it passes at the same time; None if the queue is
        full."""
        if self.link.rate_bytes_s is None:
            return now
        takes_s = size / self.link.rate_bytes_s
        sent = max(now, self._sent_until[source]) + takes_s
        received = max(sent, self._received_until[target] + takes_s)
        if received - now > max(QUEUE_S, QUEUE_PACKETS * takes_s):
            return None
        self._sent_until[source], self._received_until[target] = sent, received
        return received


# ---- namespaces and devices -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Namespace:
    """One host: descriptors of its namespaces and its device, and the name of the first as /proc/PID/ns/net has it."""

    net: int
    uts: int
    tun: int
    name: str


class Refused(Exception):
    """This machine does not let us make hosts."""


def make_namespaces(hosts: int, mtu: int) -> list[Namespace]:
    """Make the namespaces, in which this process is for a moment. Raises Refused; it is of no use afterwards."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY), os.open("/proc/self/ns/uts", os.O_RDONLY)
    made = [_make_namespace(address(host), mtu) for host in range(hosts)]
    for descriptor in home:
        _libc("setns", descriptor, 0)
        os.close(descriptor)
    return made


def _make_namespace(ip: str, mtu: int) -> Namespace:
    try:
        _libc("unshare", CLONE_NEWNET | CLONE_NEWUTS)
    except PermissionError as error:
        raise Refused(
            f"network namespaces need CAP_SYS_ADMIN (root), which this process does not have: {error}"
        ) from None
    socket.sethostname(ip)
    tun = _open_tun()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        _configure(control, SIOCSIFFLAGS, b"lo", struct.pack("h", IFF_UP))
        _configure(control, SIOCSIFADDR, DEVICE.encode(), _socket_address(ip))
        _configure(control, SIOCSIFNETMASK, DEVICE.encode(), _socket_address("255.255.255.0"))
        _configure(control, SIOCSIFMTU, DEVICE.encode(), struct.pack("i", mtu))
        _configure(control, SIOCSIFTXQLEN, DEVICE.encode(), struct.pack("i", DEVICE_QUEUE))
        _configure(control, SIOCSIFFLAGS, DEVICE.encode(), struct.pack("h", IFF_UP))
    net, uts = os.open("/proc/self/ns/net", os.O_RDONLY), os.open("/proc/self/ns/uts", os.O_RDONLY)
    return Namespace(net, uts, tun, os.readlink("/proc/self/ns/net"))


def _open_tun() -> int:
    try:
        tun = os.open(TUN, os.O_RDWR | os.O_NONBLOCK) if os.path.exists(TUN) else _open_own_node()
        fcntl.ioctl(tun, TUNSETIFF, _request(DEVICE.encode(), struct.pack("h", IFF_TUN | IFF_NO_PI)))
    except OSError as error:
        raise Refused(f"TUN devices need {TUN} (or leave to make it) and CAP_NET_ADMIN: {error}") from None
    return tun


def _open_own_node() -> int:
    """Open the TUN driver where /dev does not have it, and leave no file."""
    with tempfile.TemporaryDirectory() as folder:
        node = os.path.join(folder, "tun")
        os.mknod(node, stat.S_IFCHR | 0o600, TUN_NUMBER)
        return os.open(node, os.O_RDWR | os.O_NONBLOCK)


def _libc(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def _configure(control: socket.socket, number: int, device: bytes, value: bytes) -> None:
    fcntl.ioctl(control, number, _request(device, value))


def _request(device: bytes, value: bytes) -> bytes:
    return struct.pack("16s24s", device, value)  # struct ifreq


def _socket_address(ip: str) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(ip))


# ---- processes of a namespace ---------------------------------------------------------------------------------------


def processes_in(namespace: str) -> list[int]:
    """Return all living processes in a namespace ("net:[4026532000]"); a zombie is in none."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _is_in(entry, namespace)]


def _is_in(process: Path, namespace: str) -> bool:
    try:
        return os.readlink(process / "ns" / "net") == namespace
    except OSError:
        return False  # it ended while we looked


def send_to(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue  # it ended by itself


# ---- the process ----------------------------------------------------------------------------------------------------


def serve(switch: Switch, tuns: list[int], parent: int) -> None:
    """Move packets until standard input or `parent` ends."""
    source_of = {tun: host for host, tun in enumerate(tuns)}
    watched = [sys.stdin.fileno(), parent, *tuns]
    while True:
        ready, _, _ = select.select(watched, [], [], switch.wait_s(time.monotonic()))
        for descriptor in ready:
            if descriptor in source_of:
                _read(switch, descriptor, source_of[descriptor])
            elif descriptor == parent or not _change(switch):
                return
        for target, packet in switch.deliver(time.monotonic()):
            _write(tuns[target], packet)


def _read(switch: Switch, tun: int, source: int) -> None:
    for _ in range(AT_ONCE):
        try:
            packet = os.read(tun, LONGEST_PACKET)
        except BlockingIOError:
            return
        switch.accept(time.monotonic(), source, packet)


def _write(tun: int, packet: bytes) -> None:
    try:
        os.write(tun, packet)
    except BlockingIOError:
        return  # the receiver's queue is full: the packet is lost


def _change(switch: Switch) -> bool:
    """Read one line, which comes whole: it is shorter than PIPE_BUF and the next waits for our answer. False at the
    end."""
    if not (line := os.read(sys.stdin.fileno(), select.PIPE_BUF)):
        return False
    switch.link = Link.of_line(line)
    print(json.dumps({"delivered_bytes": switch.delivered_bytes}), flush=True)
    return True


def _kill(namespaces: list[Namespace]) -> None:
    while pids := [pid for namespace in namespaces for pid in processes_in(namespace.name)]:
        send_to(pids, signal.SIGKILL)
        time.sleep(POLL_S)  # until the kernel has removed them


def main(parent: str, link: str, hosts: str, mtu: str, seed: str) -> None:
    watch = os.pidfd_open(int(parent))
    try:
        namespaces = make_namespaces(int(hosts), int(mtu))
    except Refused as error:
        print(json.dumps({"refused": str(error)}), flush=True)
        return
    print(json.dumps({"namespaces": [asdict(namespace) for namespace in namespaces]}), flush=True)
    switch = Switch(int(hosts), Link.of_line(link), int(seed))
    serve(switch, [namespace.tun for namespace in namespaces], watch)
    _kill(namespaces)


if __name__ == "__main__":
    main(*sys.argv[1:])
