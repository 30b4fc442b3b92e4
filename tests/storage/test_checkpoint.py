"""Checkpoints: whole or not there. Killed writers, damaged bytes, full disks, hostile files."""

import json
import os
import random
import resource
import select
import subprocess
import threading
import time
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch

from hogwild.errors import CheckpointError
from hogwild.host.background_thread import Background
from hogwild.storage import checkpoint, checkpoint_format, published_folder
from hogwild.storage.checkpoint import WriteResult, write_and_prune
from tests.helpers.processes import PATIENCE_S

DEADLINE_S = PATIENCE_S


def write(folder: Path, update: int, value: float = 0.0, **more: Any) -> Path:
    tensors = {"weight": torch.full((3, 4), value), "bias": torch.arange(5.0)}
    state = {"model": tensors, "updates": update, "ledger": [[0, 8], [16, 24]], **more}
    return checkpoint.write(folder, checkpoint_format.checkpoint_name(update), state, tensors, {"loss": value})


# --- what is written comes back


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    path = write(tmp_path, 1000, 2.5)
    assert path.name == "update-000001000"
    state = checkpoint.load(path)
    assert state["updates"] == 1000 and state["ledger"] == [[0, 8], [16, 24]]
    assert torch.equal(state["model"]["weight"], torch.full((3, 4), 2.5))
    manifest = checkpoint_format.verify(path)
    assert (manifest.update, manifest.meta, manifest.format) == (1000, {"loss": 2.5}, 1)
    assert {entry.name for entry in path.iterdir()} == {"state.pt", "model.safetensors", "manifest.json"}
    assert {entry.name for entry in tmp_path.iterdir()} == {"update-000001000"}
    assert len({(path / name).stat().st_mode for name in ("state.pt", "model.safetensors", "manifest.json")}) == 1


def test_views_of_a_flat_are_saved_once_and_still_share(tmp_path: Path) -> None:
    flat = torch.arange(1000.0)
    views = {"a": flat[:600].view(20, 30), "b": flat[600:]}
    path = checkpoint.write(tmp_path, "update-000000001", {"flat": flat, **views}, views, {})
    assert (path / "state.pt").stat().st_size < 2 * flat.nbytes
    state = checkpoint.load(path)
    state["flat"][0] = -1
    assert state["a"][0, 0] == -1


def test_the_model_file_holds_tied_overlapping_strided_and_empty_tensors(tmp_path: Path) -> None:
    flat = torch.arange(400.0)
    tensors = {
        "encoder": flat[:100].view(10, 10),
        "decoder": flat[:100].view(10, 10),
        "slice": flat[50:150],
        "conv": flat[200:300].view(2, 5, 5, 2).permute(0, 3, 1, 2),
        "count": torch.tensor(7),
        "none": torch.empty(0),
    }
    path = checkpoint.write(tmp_path, "update-000000001", {}, tensors, {})
    with safetensors.safe_open(path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "decoder": "encoder"}
        for name in file.keys():  # noqa: SIM118 - the library's object is no dict
            assert torch.equal(file.get_tensor(name), tensors[name])
        assert set(file.keys()) == set(tensors) - {"decoder"}


def tied_model() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


def test_the_model_file_loads_with_the_library_alone(tmp_path: Path) -> None:
    model, other = tied_model(), tied_model()
    path = checkpoint.write(tmp_path, "update-000000001", {}, model.state_dict(), {})
    safetensors.torch.load_model(other, path / "model.safetensors")
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)


def test_torch_s_own_setting_is_as_before(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    write(tmp_path, 1)
    assert torch.serialization.get_crc32_options() == before


@pytest.mark.parametrize("value", [Path("x"), lambda: None, {"deep": [Path("x")]}])
def test_what_could_not_be_loaded_again_is_refused_when_written(tmp_path: Path, value: object) -> None:
    write(tmp_path, 1)
    with pytest.raises(CheckpointError):
        write(tmp_path, 2, extra=value)
    assert {entry.name for entry in tmp_path.iterdir()} == {"update-000000001"}


def test_a_name_nobody_would_find_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="must be like update-000001000"):
        checkpoint.write(tmp_path, "best", {}, {}, {})
    assert list(tmp_path.iterdir()) == []


# --- damage


def test_every_flipped_bit_is_detected(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    chance = random.Random(1)
    for name in ("state.pt", "model.safetensors", "manifest.json"):
        file = path / name
        whole = file.read_bytes()
        places = range(len(whole)) if name == "manifest.json" else chance.sample(range(len(whole)), 150)
        for place in places:
            damaged = bytearray(whole)
            damaged[place] ^= 1 << chance.randrange(8)
            file.write_bytes(damaged)
            with pytest.raises(CheckpointError):
                checkpoint_format.verify(path)
        file.write_bytes(whole)
        checkpoint_format.verify(path)


def test_every_truncation_is_detected(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    for name in ("state.pt", "model.safetensors", "manifest.json"):
        file = path / name
        whole = file.read_bytes()
        for length in [*range(0, len(whole), 64), len(whole) - 1]:
            file.write_bytes(whole[:length])
            with pytest.raises(CheckpointError, match=name):
                checkpoint.load(path)
        file.write_bytes(whole)


def test_a_damaged_file_is_named_with_both_hashes_and_sizes(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    expected = checkpoint_format.verify(path).files["state.pt"]
    (path / "state.pt").write_bytes(b"x")
    with pytest.raises(CheckpointError) as caught:
        checkpoint_format.verify(path)
    for word in (str(path), "state.pt", expected["sha256"], str(expected["size"]), "2d711642b726b044"):
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["state.pt", "model.safetensors", "manifest.json"])
def test_a_missing_or_linked_file_or_a_pipe_is_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "c", 1)
    moved = (path / name).rename(tmp_path / name)
    with pytest.raises(CheckpointError, match=name):
        checkpoint_format.verify(path)
    (path / name).symlink_to(moved)
    with pytest.raises(CheckpointError, match=name):
        checkpoint_format.verify(path)
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(CheckpointError, match="not a regular file"):
        checkpoint_format.verify(path)


def test_files_swapped_with_another_checkpoint_and_renamed_ones_are_refused(tmp_path: Path) -> None:
    first, second = write(tmp_path, 1, 1.0), write(tmp_path, 2, 2.0)
    (second / "state.pt").write_bytes((first / "state.pt").read_bytes())
    with pytest.raises(CheckpointError, match=r"state\.pt is damaged"):
        checkpoint_format.verify(second)
    with pytest.raises(CheckpointError, match="renamed"):
        checkpoint_format.verify(first.rename(tmp_path / "update-000000009"))


def reseal(path: Path, **changes: Any) -> None:
    """Rewrite a file as somebody who knows the format."""
    content = json.loads((path / "manifest.json").read_text())
    content.pop("seal")
    (path / "manifest.json").write_bytes(published_folder.seal({**content, **changes}))


def test_a_format_of_the_future_asks_for_a_newer_version(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    reseal(path, format=2)
    with pytest.raises(CheckpointError, match=r"manifest\.json says format 2; this version of hogwild reads up to 1"):
        checkpoint_format.verify(path)


@pytest.mark.parametrize(
    "changes", [{"files": ["state.pt", "model.safetensors"]}, {"files": {"../../x": {}}}, {"more": 1}]
)
def test_a_manifest_of_somebody_else_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = write(tmp_path, 1)
    reseal(path, **changes)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        checkpoint_format.verify(path)


class Hostile:
    """Its pickle asks to make a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, tuple[str, int]]:
        return os.mknod, (str(self.file), 0o600)


def test_a_pickle_that_wants_to_run_code_is_an_error_and_does_not_run(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    torch.save({"x": Hostile(tmp_path / "harm")}, path / "state.pt")
    content = json.loads((path / "manifest.json").read_text())
    reseal(path, files={**content["files"], "state.pt": published_folder.entry_of(path / "state.pt")})
    checkpoint_format.verify(path)  # the hashes are right
    with pytest.raises(CheckpointError, match="cannot be loaded safely"):
        checkpoint.load(path)
    assert not (tmp_path / "harm").exists()


# --- choosing and keeping house


def test_the_newest_good_one_is_found_and_the_others_explained(tmp_path: Path) -> None:
    paths = [write(tmp_path, update) for update in (5, 20, 100, 1_000_000_000)]
    (paths[3] / "manifest.json").unlink()
    (paths[2] / "state.pt").write_bytes(b"")
    outside = write(tmp_path / "elsewhere", 2_000_000_000)
    (tmp_path / outside.name).symlink_to(outside)
    (tmp_path / "latest").symlink_to(paths[3].name)
    found, rejected = checkpoint_format.newest_good(tmp_path)
    assert found == paths[1]
    assert ["symbolic link" in rejected[0], "manifest.json" in rejected[1], "state.pt" in rejected[2]] == [True] * 3


def test_a_folder_without_any_has_none(tmp_path: Path) -> None:
    assert checkpoint_format.newest_good(tmp_path) == (None, [])
    assert checkpoint_format.newest_good(tmp_path / "none") == (None, [])


def test_pruning_keeps_the_newest_and_those_that_latest_and_best_point_to(tmp_path: Path) -> None:
    paths = [write(tmp_path, update) for update in (1, 2, 3, 4, 5)]
    (tmp_path / "latest").symlink_to(paths[1].name)
    (tmp_path / "best").symlink_to(paths[0].name)
    removed = checkpoint_format.prune(tmp_path, 2)
    assert removed == [paths[2].name]
    assert {entry.name for entry in tmp_path.iterdir()} == {
        "latest", "best", *(paths[index].name for index in (0, 1, 3, 4))
    }  # fmt: skip


def test_a_damaged_checkpoint_of_the_same_name_gives_way(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    (path / "state.pt").write_bytes(b"")
    assert write(tmp_path, 1, 7.0) == path
    assert checkpoint.load(path)["model"]["weight"][0, 0] == 7
    assert {entry.name for entry in tmp_path.iterdir()} == {path.name}


def test_of_those_set_aside_as_many_are_kept_as_are_asked_for_and_the_ones_written_last(tmp_path: Path) -> None:
    """A run that goes back again and again must not fill the disk; a resume removes nothing."""
    stranger = tmp_path / "rejected-by-hand"
    stranger.mkdir()
    for step, update in enumerate((10, 40, 30, 20)):
        good, path = write(tmp_path, 1), write(tmp_path, update)
        os.utime(path, ns=(step, step))  # a file system may give several the same time
        checkpoint_format.set_aside_after(tmp_path, good, keep=None if update == 30 else 2)
        assert checkpoint_format.newest_good(tmp_path) == (good, [])
        left = {entry.name for entry in tmp_path.iterdir()} - {good.name, stranger.name}
        if update == 30:
            assert left == {f"rejected-update-0000000{number}" for number in (10, 40, 30)}
    assert left == {"rejected-update-000000020", "rejected-update-000000030"}
    assert stranger.exists()


# --- in the background, and a full disk


def big(value: float = 1.0) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((500_000,), value)}


Results = list[WriteResult]


def begin(writer: Background, folder: Path, update: int, state: dict[str, Any], keep: int = 9, **rest: Any) -> Results:
    """Begins to write; what becomes of it is in the list once the writer is settled."""
    results: Results = []
    name = checkpoint_format.checkpoint_name(update)
    writer.submit(partial(write_and_prune, folder, name, state, state, {}, keep, **rest), results.append)
    return results


def test_a_checkpoint_is_written_in_the_background_and_announced(tmp_path: Path) -> None:
    writer = Background("checkpoint")
    for update in (1, 2, 3):
        results = begin(writer, tmp_path, update, big(), keep=2)
        assert select.select([writer], [], [], DEADLINE_S)[0] == [writer]
        assert writer.finish()
        assert results == [WriteResult(checkpoint_format.checkpoint_name(update))]
    assert {entry.name for entry in tmp_path.iterdir()} == {"update-000000002", "update-000000003"}
    writer.close()


@pytest.mark.parametrize("state", [big(), {"weight": lambda: None}], ids=["written", "failed"])
def test_what_comes_last_is_done_in_the_writers_thread_whatever_became_of_it(
    tmp_path: Path, state: dict[str, Any]
) -> None:
    seen: list[tuple[str, bool]] = []
    path = tmp_path / "update-000000001"
    writer = Background("checkpoint")

    def last() -> None:
        seen.append((threading.current_thread().name, path.exists()))

    results = begin(writer, tmp_path, 1, state, last=last)
    assert writer.wait(DEADLINE_S)
    assert seen == [("checkpoint", results[0].error is None)]
    writer.close()


def test_an_error_that_is_kept_keeps_no_tensors(tmp_path: Path) -> None:
    """A gigabyte of parameters that could not be written must not stay until the next checkpoint can."""
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = Background("checkpoint")
    state = big()
    seen = weakref.ref(state["weight"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, former[1]))
    try:
        results = begin(writer, tmp_path, 1, state)
        del state
        assert writer.wait(DEADLINE_S)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
    assert "File too large" in str(results[0].error)
    assert seen() is None
    writer.close()


def test_what_a_module_says_of_itself_is_in_the_state_and_not_among_the_tensors(tmp_path: Path) -> None:
    model = {"weight": torch.ones(3), "body._extra_state": {"seen": 7}}
    path = checkpoint.write(tmp_path, "update-000000001", {"model": model}, model, {})
    assert checkpoint.load(path)["model"]["body._extra_state"] == {"seen": 7}
    assert set(safetensors.torch.load_file(path / "model.safetensors")) == {"weight"}


def test_a_full_disk_is_reported_leaves_nothing_and_the_one_before_is_good(tmp_path: Path) -> None:
    good = write(tmp_path, 1)
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, 100, 50_000, 1_999_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, former[1]))
        try:
            result = write_and_prune(tmp_path, "update-000000002", big(), big(), {}, 9)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, former)
        assert "update-000000002: File too large" in str(result.error)
        assert {entry.name for entry in tmp_path.iterdir()} == {good.name}
    assert checkpoint_format.newest_good(tmp_path) == (good, [])
    result = write_and_prune(tmp_path, "update-000000002", big(), big(), {}, 9)
    assert result.error is None


@pytest.mark.processes
def test_a_small_file_system_that_fills_up_is_survived(tmp_path: Path) -> None:
    point = tmp_path / "small"
    point.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(point)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not permitted here")
    try:
        checkpoint.write(point, "update-000000001", big(), big(), {})
        with pytest.raises(CheckpointError, match="No space left on device"):
            checkpoint.write(point, "update-000000002", big(), big(), {})
        assert [entry.name for entry in point.iterdir()] == ["update-000000001"]
        assert checkpoint_format.newest_good(point)[0] == point / "update-000000001"
    finally:
        subprocess.run(["umount", str(point)], check=True)


def test_other_threads_go_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    """Held throughout, the interpreter lock would leave this thread one turn or two while a checkpoint is written. One
    is enough, unless the machine lets this thread wait for as long as it takes: then there is another."""
    tensors = {"weight": torch.ones(25_000_000)}
    writer = Background("checkpoint")
    turns, began = 0, time.monotonic()
    for update in range(1, 6):
        if turns <= 20:
            results = begin(writer, tmp_path, update, tensors, keep=1)
            while not select.select([writer], [], [], 0.001)[0]:
                turns += 1
                assert time.monotonic() - began < DEADLINE_S
            assert writer.finish() and results[0].error is None
    assert turns > 20
    writer.close()
