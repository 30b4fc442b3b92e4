"""Damaged checkpoints, thousands of them: each is detected, the words say what is wrong with which, and the newest good
one is used, bit for bit. Every way: by a disk, by a program, by a person, by an enemy who knows the format.

A scene is a folder with three checkpoints of one run, of which the newest is damaged; beside it lies the run of another
model. Each kind says which checkpoint is the newest good one afterwards, or that it happened to change nothing."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from hogwild.models import Mlp
from hogwild.parameters.shared_model import SharedModel
from hogwild.storage import checkpoint, published_folder
from hogwild.storage.checkpoint_format import FILES, MANIFEST, STATE, checkpoint_name, update_of
from hogwild.storage.published_folder import entry_of, seal
from hogwild.training.torch_settings import sparing_the_compiler
from tests.faults.tally import Tally
from tests.helpers.jobs import in_turn

EVERY = 10  # updates between two checkpoints
PAGE = 4096
EACH = (*FILES, MANIFEST)


@dataclass(frozen=True, slots=True)
class Scene:
    """`checkpoints`: of the run; `other`: a good checkpoint of another model, whose name is the newest one's; `harm`: a
    file that is there once somebody's code was run."""

    checkpoints: Path
    other: Path
    harm: Path

    @property
    def names(self) -> list[str]:
        """Oldest first."""
        return [checkpoint_name(EVERY * number) for number in (2, 3, 4)]

    @property
    def newest(self) -> Path:
        return self.checkpoints / self.names[-1]

    @property
    def previous(self) -> Path:
        return self.checkpoints / self.names[-2]


# What becomes of the newest one: the name of the one that is to be used, and words that the rejection must hold. None:
# by chance nothing was changed, and there was no damage.
Verdict = tuple[str, str] | None
Kind = Callable[[Scene, Random], Verdict]


def make_runs(folder: Path) -> Path:
    """`folder`/made/run, of a small model with Adam, and `folder`/other/run, of one that has another hidden layer; both
    with checkpoints of updates 20, 30 and 40. Returns `folder`."""
    jobs: dict[str, list[str]] = {}
    for name, hidden in (("made", 8), ("other", 9)):
        jobs[name] = [str(_job_file(folder, hidden))]
        for number in (3, 4):  # each attempt ends with a checkpoint
            again = ["--resume", str(folder / name / "run"), f"train.max_updates={number * EVERY}"]
            jobs[f"{name}-{number}"] = again
    for ended in in_turn(folder, jobs).values():
        assert ended.status == 0, ended.stderr
    return folder


def _job_file(folder: Path, hidden: int) -> Path:
    file = folder / f"hidden-{hidden}.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f"model: {{class_path: hogwild.models.Mlp, init_args: {{features: 64, hidden: [{hidden}], classes: 10}}}}\n"
        "data: {train: {class_path: hogwild.data.Digits, init_args: {split: train}}, batch_size: 64}\n"
        "optimizer: {class_path: torch.optim.Adam, init_args: {lr: 0.01}}\n"
        f"train: {{procs: 0, threads: 1, max_updates: {2 * EVERY}, epochs: 100}}\n"
        "checkpoint: {every_s: null, keep: 3}\n"
    )
    return file


def scene_of(runs: Path, place: Path) -> Scene:
    """A fresh copy of what `make_runs` made, in `place`."""
    shutil.copytree(runs / "made" / "run" / "checkpoints", place / "checkpoints", symlinks=True)
    return Scene(
        place / "checkpoints", runs / "other" / "run" / "checkpoints" / checkpoint_name(4 * EVERY), place / "harm"
    )


# ---- a disk ---------------------------------------------------------------------------------------------------------


def _change(scene: Scene, name: str, change: Callable[[bytearray], bytes]) -> Verdict:
    file = scene.newest / name
    before = file.read_bytes()
    after = bytes(change(bytearray(before)))
    file.write_bytes(after)
    return (scene.previous.name, name) if after != before else None


def truncated(scene: Scene, chance: Random) -> Verdict:
    name = chance.choice(EACH)
    at = 512 * chance.randrange(-(-(scene.newest / name).stat().st_size // 512))
    return _change(scene, name, lambda content: content[:at])


def with_a_flipped_bit(scene: Scene, chance: Random) -> Verdict:
    def flip(content: bytearray) -> bytes:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        return content

    return _change(scene, chance.choice(EACH), flip)


def with_a_zeroed_page(scene: Scene, chance: Random) -> Verdict:
    def clear(content: bytearray) -> bytes:
        start = chance.randrange(-(-len(content) // PAGE)) * PAGE
        stop = min(start + PAGE, len(content))
        content[start:stop] = bytes(stop - start)
        return content

    return _change(scene, chance.choice(EACH), clear)


def with_zeros(scene: Scene, chance: Random) -> Verdict:
    def clear(content: bytearray) -> bytes:
        start = chance.randrange(len(content))
        stop = min(start + chance.randint(1, 600), len(content))
        content[start:stop] = bytes(stop - start)
        return content

    return _change(scene, chance.choice(EACH), clear)


def with_more_behind_it(scene: Scene, chance: Random) -> Verdict:
    return _change(
        scene, chance.choice(EACH), lambda content: bytes(content) + chance.randbytes(chance.randint(1, 600))
    )


def with_an_empty_file(scene: Scene, chance: Random) -> Verdict:
    return _change(scene, chance.choice(EACH), lambda _: b"")


# ---- a program, or a person -----------------------------------------------------------------------------------------


def with_the_file_of_another(scene: Scene, chance: Random) -> Verdict:
    """Both have the other's, so neither is what it says."""
    name = chance.choice(EACH)
    ours, theirs = (folder / name for folder in (scene.newest, scene.previous))
    first, second = ours.read_bytes(), theirs.read_bytes()
    ours.write_bytes(second)
    theirs.write_bytes(first)
    return (scene.names[0], name if name in FILES else "renamed") if first != second else None


def swapped_as_a_whole(scene: Scene, chance: Random) -> Verdict:
    aside = scene.checkpoints / "aside"
    scene.newest.rename(aside)
    scene.previous.rename(scene.newest)
    aside.rename(scene.previous)
    return scene.names[0], "renamed"


def an_older_one_under_its_name(scene: Scene, chance: Random) -> Verdict:
    shutil.rmtree(scene.newest)
    shutil.copytree(scene.previous, scene.newest)
    return scene.previous.name, "renamed"


def without_a_file(scene: Scene, chance: Random) -> Verdict:
    name = chance.choice(EACH)
    (scene.newest / name).unlink()
    return scene.previous.name, name


def with_a_folder_for_a_file(scene: Scene, chance: Random) -> Verdict:
    name = chance.choice(EACH)
    (scene.newest / name).unlink()
    (scene.newest / name).mkdir()
    return scene.previous.name, "not a regular file"


def with_a_pipe_for_a_file(scene: Scene, chance: Random) -> Verdict:
    name = chance.choice(EACH)
    (scene.newest / name).unlink()
    os.mkfifo(scene.newest / name)
    return scene.previous.name, "not a regular file"


def that_may_not_be_read(scene: Scene, chance: Random) -> Verdict:
    name = chance.choice(EACH)
    (scene.newest / name).chmod(0)
    if os.access(scene.newest / name, os.R_OK):  # as root: it is no damage at all
        return None
    return scene.previous.name, name


def a_file_for_a_folder(scene: Scene, chance: Random) -> Verdict:
    shutil.rmtree(scene.newest)
    scene.newest.write_bytes(chance.randbytes(100))
    return scene.previous.name, MANIFEST


# ---- an enemy, or another version -----------------------------------------------------------------------------------


def _linked(file: Path, elsewhere: Path) -> None:
    file.rename(elsewhere)
    file.symlink_to(elsewhere)


def with_a_link_that_leads_out(scene: Scene, chance: Random) -> Verdict:
    name = chance.choice(EACH)
    _linked(scene.newest / name, scene.harm.with_name("outside"))
    return scene.previous.name, f"cannot open {name}"


def a_link_that_leads_out(scene: Scene, chance: Random) -> Verdict:
    _linked(scene.newest, scene.harm.with_name("outside"))
    return scene.previous.name, "is a symbolic link"


def reseal(path: Path, **changes: Any) -> None:
    """The manifest with these changes and with hashes that are right."""
    content = json.loads((path / MANIFEST).read_text())
    content.pop("seal")
    content["files"] = {name: entry_of(path / name) for name in FILES}
    (path / MANIFEST).write_bytes(seal({**content, **changes}))


def of_the_future(scene: Scene, chance: Random) -> Verdict:
    number = chance.choice([2, 3, 10**9, 10**400])
    reseal(scene.newest, format=number)
    return scene.previous.name, "use a newer version"


def of_no_format(scene: Scene, chance: Random) -> Verdict:
    reseal(scene.newest, format=chance.choice([0, -1, 0.5, None, "1", [], {}]))
    return scene.previous.name, "says format"


def that_lies_about_its_update(scene: Scene, chance: Random) -> Verdict:
    reseal(scene.newest, update=chance.choice([0, -1, 10**400, None, "40", True, update_of(scene.previous.name)]))
    return scene.previous.name, "says format 1, update"


def with_an_odd_manifest(scene: Scene, chance: Random) -> Verdict:
    content = (scene.newest / MANIFEST).read_text()
    odd = chance.choice(
        [
            content.replace('"format": 1', '"format": 1,\n "format": 1'),
            content.replace('"format": 1', '"format": 1e999'),
            content.replace('"format": 1', '"format": 1.0'),
            content.replace('"format": 1', f'"format": {"9" * 10_000}'),
            content.replace(f'"update": {4 * EVERY}', '"update": NaN'),
            content.replace('"meta": {', '"meta": ' + '{"a": ' * 5_000 + "{"),
            content.replace("\n", "\r\n"),
            content.rstrip("\n"),
            "[]",
            "null",
            '{"seal": 1}',
        ]
    )
    (scene.newest / MANIFEST).write_text(odd)
    assert odd != content
    return scene.previous.name, MANIFEST


def of_another_model(scene: Scene, chance: Random) -> Verdict:
    shutil.rmtree(scene.newest)
    shutil.copytree(scene.other, scene.newest)
    return scene.previous.name, "shape (9, 64) in the checkpoint, (8, 64) in this model"


class Hostile:
    """Its pickle asks to make a file, the moment it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, tuple[str, int]]:
        return os.mknod, (str(self.file), 0o600)


def _with_state(scene: Scene, change: Callable[[dict[str, Any]], Any]) -> None:
    state = torch.load(scene.newest / STATE, weights_only=True)
    torch.save(change(state), scene.newest / STATE)
    reseal(scene.newest)


def with_a_hostile_pickle(scene: Scene, chance: Random) -> Verdict:
    _with_state(scene, lambda state: {**state, chance.choice(["model", "ledger", "x"]): Hostile(scene.harm)})
    return scene.previous.name, "cannot be loaded safely"


def with_no_pickle(scene: Scene, chance: Random) -> Verdict:
    (scene.newest / STATE).write_bytes(chance.randbytes(chance.randrange(3000)))
    reseal(scene.newest)
    return scene.previous.name, "cannot be loaded safely"


def that_lacks_a_part(scene: Scene, chance: Random) -> Verdict:
    part = chance.choice(["model", "optimizer"])
    _with_state(scene, lambda state: {key: value for key, value in state.items() if key != part})
    return scene.previous.name, f"lacks {part}"


def that_is_no_dict(scene: Scene, chance: Random) -> Verdict:
    _with_state(scene, lambda state: list(state.values()))
    return scene.previous.name, "must hold a dict"


def with_weights_that_are_no_numbers(scene: Scene, chance: Random) -> Verdict:
    def spoil(state: dict[str, Any]) -> dict[str, Any]:
        weights = state["model"][chance.choice(sorted(state["model"]))]
        weights.view(-1)[chance.randrange(weights.numel())] = chance.choice([float("nan"), float("inf"), -float("inf")])
        return state

    _with_state(scene, spoil)
    return scene.previous.name, "is NaN or infinite in the checkpoint"


KINDS: tuple[Kind, ...] = (
    truncated, with_a_flipped_bit, with_a_zeroed_page, with_zeros, with_more_behind_it, with_an_empty_file,
    with_the_file_of_another, swapped_as_a_whole, an_older_one_under_its_name, without_a_file,
    with_a_folder_for_a_file, with_a_pipe_for_a_file, that_may_not_be_read, a_file_for_a_folder,
    with_a_link_that_leads_out, a_link_that_leads_out, of_the_future, of_no_format, that_lies_about_its_update,
    with_an_odd_manifest, of_another_model, with_a_hostile_pickle, with_no_pickle, that_lacks_a_part, that_is_no_dict,
    with_weights_that_are_no_numbers,
)  # fmt: skip
# Bits, pages and ends are where most of what there is to find lies: there are millions of them.
OFTEN = (truncated, with_a_flipped_bit, with_a_zeroed_page, with_zeros)


def run(seed: int, count: int, folder: Path) -> Tally:
    """Injects `count` damages, every kind in turn, on copies of a run (`folder`/runs, made unless it is there). What by
    chance changed nothing does not count."""
    runs = folder / "runs"
    if not runs.exists():
        make_runs(runs)
    untouched = scene_of(runs, folder / "untouched")
    contents = {name: checkpoint.load(untouched.checkpoints / name) for name in untouched.names}
    with sparing_the_compiler():
        shared = _shared_model()
    tally = Tally()
    chance = Random(seed)
    number = 0
    while tally.injected < count:
        kind = KINDS[number % len(KINDS)] if number % 2 else chance.choice(OFTEN)
        number += 1
        scene = scene_of(runs, folder / "scene")
        if (verdict := kind(scene, chance)) is not None:
            problems = _problems(scene, verdict, contents, shared)
            tally.injected += 1
            tally.survived += not problems
            tally.violations += [f"{kind.__name__}, damage {tally.injected}: {problem}" for problem in problems]
        shutil.rmtree(folder / "scene")
    shutil.rmtree(folder / "untouched")
    shared.release()
    return tally


def _shared_model() -> SharedModel:
    """Return the model that a resume restores into, the run's own."""
    model = Mlp(features=64, hidden=[8], classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return SharedModel.build(model, torch.nn.CrossEntropyLoss(), optimizer, procs=1)


def _problems(
    scene: Scene, verdict: tuple[str, str], contents: dict[str, dict[str, Any]], shared: SharedModel
) -> list[str]:
    name, words = verdict
    published_folder.sweep(scene.checkpoints)
    taken = checkpoint.load_newest(scene.checkpoints, shared.restore)
    said = " ".join(taken.rejected)
    problems = []
    if taken.path is None or taken.path.name != name:
        problems.append(f"{taken.path} was used instead of {name}; rejected: {said}")
    elif not _is_same(taken.state, contents[name]) or not _is_same(shared.model.state_dict(), contents[name]["model"]):
        problems.append(f"what was restored from {name} is not what it held")
    if words not in said or scene.newest.name not in said:
        problems.append(f"no word of {words!r} and {scene.newest.name}: {said}")
    if scene.harm.exists():
        problems.append("code of the checkpoint was run")
    return problems


def _is_same(one: Any, other: Any) -> bool:
    """Bit for bit, in any nesting."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)
