"""Shared memory without names: zeros, shared with whoever has the descriptor, given back when nobody uses it."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hogwild.errors import MemoryShortError
from hogwild.formatting import size
from hogwild.host import Memory, available_memory, descriptor_count
from hogwild.shared_memory.region import ALIGNMENT, Region, aligned
from tests.helpers.processes import PATIENCE_S

HOME = Path(__file__).resolve().parents[2]


def in_a_process(code: str, region: Region | None = None) -> str:
    """Runs `code` in a python of its own, which inherits the region's descriptor; what it printed."""
    arguments = [str(region.descriptor), str(region.nbytes)] if region else []
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        pass_fds=[region.descriptor] if region else [],
        capture_output=True,
        cwd=HOME,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    ("nbytes", "expected"), [(0, 0), (1, 64), (63, 64), (64, 64), (65, 128), (10**12 + 1, 10**12 + 64)]
)
def test_sizes_are_rounded_up_to_whole_cache_lines(nbytes: int, expected: int) -> None:
    assert ALIGNMENT == 64
    assert aligned(nbytes) == expected


@pytest.mark.parametrize(("asked", "got"), [(0, 64), (1, 64), (64, 64), (100, 128), (1 << 20, 1 << 20)])
def test_a_new_region_holds_zeros_and_at_least_what_was_asked_for(asked: int, got: int) -> None:
    region = Region.allocate("test", asked)
    assert region.nbytes == got == os.fstat(region.descriptor).st_size
    assert os.fstat(region.descriptor).st_blocks * 512 >= got  # the pages exist: no fault can fail later
    assert not region.array(np.uint8, (got,)).any()


def test_everything_made_from_a_region_is_shared_and_starts_on_a_cache_line() -> None:
    region = Region.allocate("test", 4096)
    tensor = region.tensor(torch.float32, (8, 4), offset=128)
    assert tensor.is_shared()
    assert tensor[2:, 1].is_shared()
    assert region.array(np.int64, (4,)).ctypes.data % ALIGNMENT == 0
    assert tensor.data_ptr() == region.array(np.uint8, (1,)).ctypes.data + 128


def test_tensors_and_arrays_see_each_others_writes() -> None:
    region = Region.allocate("test", 4096)
    tensor = region.tensor(torch.float64, (3, 5), offset=64)
    array = region.array(np.float64, (15,), offset=64)
    tensor[1, 2] = 2.5
    array[14] = -1.0
    assert array[7] == 2.5
    assert tensor[2, 4] == -1.0
    assert region.array(np.float64, (8,)).tolist() == [0.0] * 8  # before the offset


def test_strides_are_in_elements() -> None:
    region = Region.allocate("test", 4096)
    flat = region.tensor(torch.int32, (24,))
    flat.copy_(torch.arange(24))
    transposed = region.tensor(torch.int32, (4, 6), strides=(1, 4))
    assert torch.equal(transposed, flat.view(6, 4).t())
    assert region.tensor(torch.int32, (2, 2), offset=16, strides=(4, 1)).tolist() == [[4, 5], [8, 9]]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,)])
def test_shapes_without_numbers_and_without_dimensions_are_possible(shape: tuple[int, ...]) -> None:
    region = Region.allocate("test", 64)
    assert region.tensor(torch.float32, shape).shape == shape
    assert region.array(np.float32, shape).shape == shape


@pytest.mark.parametrize("offset", [1, 2, 4, 12])
def test_an_offset_between_two_elements_is_refused(offset: int) -> None:
    region = Region.allocate("test", 64)
    with pytest.raises(ValueError, match=f"offset {offset} is not a multiple of the item size"):
        region.tensor(torch.float64, (1,), offset)
    with pytest.raises(ValueError, match=f"offset {offset} is not a multiple of the item size"):
        region.array(np.float64, (1,), offset)


@pytest.mark.parametrize(("shape", "offset"), [((17,), 0), ((16,), 4), ((1,), 64), ((4, 5), 0)])
def test_nothing_reaches_past_the_end_of_a_region(shape: tuple[int, ...], offset: int) -> None:
    region = Region.allocate("test", 64)
    with pytest.raises(RuntimeError, match="not resizable"):
        region.tensor(torch.float32, shape, offset)
    with pytest.raises(RuntimeError, match="not resizable"):
        region.array(np.float32, shape, offset)


# ---- memory that is not there ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [1 << 50, 1 << 62, 1 << 80])
def test_more_than_there_is_is_an_error_before_a_page_is_touched(nbytes: int) -> None:
    before, free = descriptor_count(), available_memory().bytes
    with pytest.raises(MemoryShortError) as error:
        Region.allocate("flat-float32", nbytes)
    assert f"cannot allocate {size(nbytes)} of shared memory for flat-float32" in str(error.value)
    assert "are free (the memory" in str(error.value)
    assert descriptor_count() == before
    assert available_memory().bytes > free // 2


def test_the_limit_of_a_control_group_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hogwild.host.available_memory", lambda: Memory(1000, "the memory limit in a group"))
    Region.allocate("test", 960)
    with pytest.raises(MemoryShortError, match=r"1\.0 KiB .* only 1\.0 KiB are free \(the memory limit in a group\)"):
        Region.allocate("test", 961)


REFUSALS = """
import os, resource, signal
from hogwild.errors import MemoryShortError
from hogwild.host import descriptor_count
from hogwild.shared_memory.region import Region
Region.allocate("first", 64)
before = descriptor_count()
def refused():
    try:
        Region.allocate("large", 1 << 28)
    except MemoryShortError as error:
        print(error, "|", error.exit_status)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
refused()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (1 << 26), resource.RLIM_INFINITY))
refused()
print(descriptor_count() - before)
"""


@pytest.mark.processes
def test_what_the_system_refuses_is_the_same_error_and_leaves_no_descriptor() -> None:
    allocated, mapped, leaked = in_a_process(REFUSALS).splitlines()
    assert allocated.startswith("cannot allocate 256 MiB of shared memory for large: ")
    assert mapped.startswith("cannot allocate 256 MiB of shared memory for large: ")
    assert allocated.endswith("File too large; the limit on the size of files holds for it: ulimit -f | 1")
    assert mapped.endswith("| 1")
    assert leaked == "0"


# ---- giving back ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_descriptors_and_memory_come_back_with_the_last_view() -> None:
    gc.collect()
    before = descriptor_count()
    regions = [Region.allocate("test", 1 << 12) for _ in range(20)]
    views = [region.tensor(torch.float32, (8,)) for region in regions]
    arrays = [region.array(np.int64, (8,)) for region in regions]
    held = descriptor_count() - before
    assert 20 <= held <= 40  # ours, and perhaps torch's own
    del regions
    views[3].fill_(7.0)  # still mapped
    assert arrays[3].view(np.float32)[0] == 7.0
    del views, arrays
    gc.collect()
    assert descriptor_count() == before


def test_a_closed_region_keeps_its_views_and_can_be_closed_twice() -> None:
    region = Region.allocate("test", 64)
    view = region.tensor(torch.int64, (8,))
    descriptor = region.descriptor
    region.close()
    region.close()
    assert region.descriptor == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    view.fill_(3)
    assert region.array(np.int64, (8,)).tolist() == [3] * 8


def test_a_region_is_not_inherited_by_accident_and_has_no_name() -> None:
    region = Region.allocate("test", 64)
    assert not os.get_inheritable(region.descriptor)
    assert os.fstat(region.descriptor).st_nlink == 0
    assert os.readlink(f"/proc/self/fd/{region.descriptor}").startswith("/memfd:")


# ---- another process ------------------------------------------------------------------------------------------------

WRITER = """
import sys
import torch
from hogwild.shared_memory.region import Region
region = Region.attach(int(sys.argv[1]), int(sys.argv[2]))
view = region.tensor(torch.float32, (4,), offset=64)
print(view.tolist(), view.is_shared())
view += 1
region.array("i8", (1,))[0] = 42
"""


@pytest.mark.processes
def test_another_process_sees_our_writes_and_we_see_its() -> None:
    region = Region.allocate("test", 4096)
    view = region.tensor(torch.float32, (4,), offset=64)
    view.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert in_a_process(WRITER, region) == "[1.0, 2.0, 3.0, 4.0] True\n"
    assert view.tolist() == [2.0, 3.0, 4.0, 5.0]
    assert region.array(np.int64, (1,)).tolist() == [42]


def test_private_memory_has_no_descriptor_and_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU worker's own state: a worker that finds too little is replaced; a region would end the job."""
    monkeypatch.setattr("hogwild.host.available_memory", lambda: Memory(0, "nothing is left"))
    before = descriptor_count()
    region = Region.private(100)
    assert descriptor_count() == before
    assert region.array("i8", (12,)).tolist() == [0] * 12 and not region.tensor(torch.uint8, (8,)).is_shared()


def test_a_region_mapped_to_be_read_shows_what_is_written_and_cannot_be_written() -> None:
    written = Region.allocate("only-read", 4096)
    read = Region.attach(os.dup(written.descriptor), 4096, writable=False)
    written.array("i8", (2,))[:] = 3, 4
    assert read.array("i8", (2,)).tolist() == [3, 4] and read.tensor(torch.int64, (2,)).tolist() == [3, 4]
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "hogwild-only-read" in line]
    assert sorted(permissions for _, permissions, *_ in maps) == ["r--s", "rw-s"]
