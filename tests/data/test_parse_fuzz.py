"""Whatever a file says, a parser reads and writes inside its arrays: the kernels compiled with bounds checks, in a
process of its own with an empty cache of compiled code, on files that are nearly right, and on bytes that are nothing.

Run as a script it is that process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.processes import PATIENCE_S

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
WORDS = (
    b"1", b"-1", b"+1 ", b"0", b":", b"1:1", b"7:", b":3", b"2147483647:1", b"99999999999:2", b" ", b"\t", b"\n",
    b"\r\n", b"#", b"nan", b"inf", b"-", b".", b"e", b"1e999", b"1e-999", b"1e99999999999", b"1.5", b",", b"::",
    b'"', b'""', b"x", b"12345678901234567890", b"\x00", b"\xff", b"007", b"a\tb\tc\n", b"1,2,3\n", b"1::2::3\n",
    b"1 1:1 2:2\n",
)  # fmt: skip


def test_no_kernel_reads_or_writes_outside_its_arrays(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", __file__, str(tmp_path / "data")],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.split() == ["checked", "parsed"] and [*tmp_path.glob("hogwild/kernels-*/manifest.json")]


def check_that_bounds_are_checked() -> None:
    """Otherwise nothing below would prove anything."""
    import numpy as np

    from hogwild.kernels.libsvm import FOUND, parse

    text, longs, ints = np.frombuffer(b"1 2:3\n", np.uint8), np.zeros(1, np.int64), np.zeros(1, np.int32)
    floats, found = np.zeros((3, 1), np.float32), np.zeros(FOUND, np.int64)
    parse(text, 0, 9, False, longs, ints, floats[0], floats[1], found)
    assert ints[0] == 2
    try:
        parse(text, 0, 9, False, longs, ints, floats[0, :0], floats[1], found)  # a lie: there is no room
    except IndexError:
        print("checked")


def parse_everything(path: Path) -> None:
    import numpy as np
    from hypothesis import HealthCheck, example, given, settings
    from hypothesis import strategies as st

    from hogwild.data import Jester, LibSvm, Ratings, Triples, packed_cache, text_file
    from hogwild.errors import DataError
    from hogwild.feeds.row_reader import InTurn
    from hogwild.kernels import kernel_cache, signatures
    from hogwild.kernels.text_keys import keys_of

    kernel_cache.make_ready(signatures.text_keys())
    text_file.LINES = 32
    nearly = st.lists(st.sampled_from(WORDS), max_size=40).map(b"".join)
    path.write_bytes(b"1 1:1\n")
    trained = LibSvm(path).pack(InTurn(0))

    def parse(content: bytes, policy: str) -> None:
        path.write_bytes(content)
        ends = [0, *(at for at, byte in enumerate(content) if byte in b" ,\n"), len(content)]
        for prefix, size in ((b"", 0), (b"site=", 9)):
            text, lead = (np.frombuffer(one, np.uint8) for one in (content, prefix))
            keys_of(text, np.array(ends, np.int32), lead, size, True, *np.zeros((2, len(ends) - 1), np.int64))
        several = (
            (LibSvm(path), None), (LibSvm(path, features=5, normalise="l2"), None), (LibSvm(path), trained),
            (LibSvm(path, labels="classes"), None), (Ratings(path, duplicates="last"), None),
            (Ratings(path, {"user": 2, "item": 0, "rating": 1}, duplicates="keep"), None), (Triples(path), None),
            (Jester(path), None),
        )  # fmt: skip
        for dataset, like in several:
            try:
                packed = dataset.pack(InTurn(0), "data.train", like, policy)
            except DataError:
                continue
            assert packed_cache.outside(packed) == "", (content, type(dataset), packed_cache.outside(packed))

    @settings(max_examples=150, deadline=None, database=None, derandomize=True, suppress_health_check=[*HealthCheck])
    @given(st.one_of(nearly, nearly, st.binary(max_size=120)), st.sampled_from(["fail", "skip"]))
    @example(b"1 1:1\n" * 30, "fail")
    @example(b"1,2,3\n1,2,4\n" * 9, "fail")
    @example(b"-", "skip")
    @example(b"1 1", "skip")
    @example(b"1 1:", "skip")
    @example(b"1 1:1e", "skip")
    @example(b"1::", "skip")
    def everything(content: bytes, policy: str) -> None:
        parse(content, policy)

    everything()
    print("parsed")


if __name__ == "__main__":
    check_that_bounds_are_checked()
    parse_everything(Path(sys.argv[1]))
