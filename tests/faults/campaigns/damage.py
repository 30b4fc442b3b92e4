"""Damaged checkpoints, thousands of them: each is detected, the words say what is wrong with which, and the newest good
one is used, bit for bit."""

import shutil
from pathlib import Path
from random import Random
from typing import Any

import torch

from hogwild.models import Mlp
from hogwild.parameters.shared_model import SharedModel
from hogwild.storage import checkpoint, published_folder
from hogwild.training.torch_settings import sparing_the_compiler
from tests.faults.damage import KINDS, OFTEN, Scene, make_runs, scene_of
from tests.faults.tally import Tally


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
    """What a resume restores into; the run's own model."""
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
