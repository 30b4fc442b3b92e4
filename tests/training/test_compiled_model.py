"""model.compile: TorchScript and torch.compile in the model's place, over the model's own parameters and buffers."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.data import IterableDataset, TensorDataset

import hogwild
from hogwild.api import job_of
from hogwild.errors import ConfigError, HogwildError, ModelError
from hogwild.job.build import from_objects
from hogwild.job.facts import complete
from hogwild.job.parts import Functions
from hogwild.parameters.worker_model import WorkerModel, check_same_memory
from hogwild.planning.device_placement import planned
from hogwild.scheduling.work_queue import Kind, WorkItem
from hogwild.storage.artifact_cache import new_scratch
from hogwild.storage.files import TEMPORARY
from hogwild.storage.published_folder import MANIFEST
from hogwild.training import compiled_model
from hogwild.training.compiled_model import ModelCache, model_key, scripted
from tests.helpers.one_trainer import Place, examples, go_on
from tests.helpers.plain_loop import differing_parameters, ulps
from tests.helpers.processes import wait_for
from tests.shared_model import build, one_thread  # noqa: F401 (one_thread is a fixture for every test here)

SAMPLES, FEATURES, HIDDEN, CLASSES = 107, 13, 17, 5
# Compiled code adds up in another order: an update is rounded differently in the last places. Measured on AVX-512, 28
# updates: at most 2 units of the largest number of a tensor with script (it is the same operations), 16 with inductor.
BOUND_ULPS = 64


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = (
            nn.Linear(FEATURES, HIDDEN),
            nn.BatchNorm1d(HIDDEN),
            nn.Linear(HIDDEN, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


class Recurrent(nn.Module):
    """Its LSTM holds its parameters in a list, too."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.last = nn.LSTM(1, 6, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.cells(x.unsqueeze(2))
        return self.last(outputs[:, -1])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


def made(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(5)
    return kind()


def samples() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(3)
    return torch.randn(SAMPLES, FEATURES, generator=random), torch.randint(CLASSES, (SAMPLES,), generator=random)


def train(model: nn.Module, run_dir: Path, how: str, rule: Any = None, **settings: Any) -> hogwild.TrainResult:
    rule = rule or (lambda params: optim.SGD(params, lr=0.05, momentum=0.9))
    common: dict[str, Any] = {"procs": 0, "threads": 1, "batch_size": 8, "epochs": 2, "seed": 11}
    return hogwild.train(
        model, TensorDataset(*samples()), nn.CrossEntropyLoss(), rule(model.parameters()),
        model={"compile": how}, run_dir=run_dir, **{**common, **settings},
    )  # fmt: skip


# ---- script ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Normed, Recurrent, Tied])
def test_a_scripted_model_trains_like_the_model_itself(tmp_path: Path, kind: Callable[[], nn.Module]) -> None:
    plain, script = made(kind), made(kind)
    train(plain, tmp_path / "plain", "none")
    train(script, tmp_path / "script", "script", val={"fraction": 0.2} if kind is Tied else None)
    if kind is not Tied:
        assert ulps(script, plain) <= BOUND_ULPS
        assert [n for n in differing_parameters(script, plain) if "num_batches" in n] == []


def attached(model: nn.Module) -> WorkerModel:
    shared = build(model, optim.SGD(model.parameters(), lr=0.1), procs=1)
    return WorkerModel.attach(shared.structure, shared.regions, 0)


@pytest.mark.parametrize("kind", [Normed, Recurrent, Tied])
def test_a_script_reads_the_very_words_and_follows_them_into_a_copy_and_back(kind: Callable[[], nn.Module]) -> None:
    worker = attached(made(kind))
    worker.runs = scripted(worker.model)
    x = samples()[0][:6]
    for delta in (True, False, True):
        worker.bind(delta=delta)
        with torch.no_grad():
            for param in worker.params:
                param.add_(0.01)
        check_same_memory(worker.runs, worker.model)
        worker.runs.eval()
        worker.model.eval()
        torch.testing.assert_close(worker.runs(x), worker.model(x))


@pytest.mark.whole
@pytest.mark.processes
def test_in_delta_a_script_is_evaluated_and_trained_as_the_model_is(tmp_path: Path) -> None:
    results = {}
    for how in ("none", "script"):
        model = made(Normed)
        settings: dict[str, Any] = {"procs": 1, "exchange": "delta", "sync_every": 4, "val": {"fraction": 0.2}}
        results[how] = train(model, tmp_path / how, how, **settings).metrics
    assert results["script"] == pytest.approx(results["none"], rel=1e-4)


class Replacing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return self.last(x)


def test_a_script_that_replaces_a_buffer_is_told_so_before_the_first_commit(tmp_path: Path) -> None:
    with pytest.raises(HogwildError, match="calls is another tensor in the compiled model"):
        train(made(Replacing), tmp_path / "run", "script")


class Unscriptable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.last(*inputs)


@pytest.mark.processes
def test_what_torchscript_does_not_know_is_said_in_its_own_words_before_workers_start(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="variable number of arguments") as caught:
        train(made(Unscriptable), tmp_path / "run", "script", procs=2)
    assert caught.value.code == "model/not-scriptable"
    assert not (tmp_path / "run").exists(), "nothing was started"


class Choosy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            raise ValueError("not like this")
        return self.last(x)


def test_a_script_that_cannot_compute_the_first_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="but not without it") as caught:
        train(made(Choosy), tmp_path / "run", "script")
    assert caught.value.code == "model/not-scriptable"


def test_a_class_that_is_in_no_file_is_refused_by_name() -> None:
    namespace: dict[str, Any] = {"nn": nn}
    source = "class Typed(nn.Linear):\n    def forward(self, x):\n        return super().forward(x)\n"
    exec(compile(source, "<cell 3>", "exec"), namespace)  # as a notebook does
    with pytest.raises(ModelError, match=r"module 1 \(Typed\) was not defined in a file"):
        scripted(nn.Sequential(nn.Tanh(), namespace["Typed"](3, 3)))


def test_precision_holds_inside_a_script(tmp_path: Path) -> None:
    plain, script = made(Normed), made(Normed)
    train(plain, tmp_path / "plain", "none", precision="bf16")
    train(script, tmp_path / "script", "script", precision="bf16")
    assert ulps(script, plain) <= BOUND_ULPS * 2**16, "an eps of bfloat16 is 2**16 of float32"


def test_an_unknown_way_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="compile"):
        train(made(Normed), tmp_path / "run", "cudagraph")


# ---- inductor -------------------------------------------------------------------------------------------------------

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: inductor cannot compile")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache for the jobs of this file: the first compiles, and proves it."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    yield folder / "hogwild"
    os.environ.pop("XDG_CACHE_HOME") if before is None else os.environ.update(XDG_CACHE_HOME=before)


def said(result: hogwild.TrainResult) -> list[str]:
    """Return each worker's words about its compiled model."""
    files = sorted((result.run_dir / "logs").glob("worker-*.log"))
    return [line for file in files for line in file.read_text().splitlines() if "compiled model" in line]


def held_until_both_have_it(run_dir: Path) -> Callable[[Tensor, Tensor], float]:
    """A metric that lets the first evaluation end when two workers have the model: otherwise the job is over before the
    second has."""

    def held(outputs: Tensor, targets: Tensor) -> float:
        logs = run_dir / "logs"
        if logs.exists():  # not in the parent's trial of it
            wait_for("both workers", lambda: sum("model:" in log.read_text() for log in logs.glob("worker-*")) == 2)
        return 0.0

    held.higher_is_better = True  # type: ignore[attr-defined]
    return held


@pytest.mark.processes
@needs_compiler
def test_one_worker_compiles_for_all_and_nothing_is_compiled_while_they_train(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last batch of either data is a smaller one, and in delta parameters move to another place."""
    late = tmp_path / "late"  # where torch would keep what is compiled after all should be
    monkeypatch.setenv(compiled_model.WHERE, str(late))
    result = train(
        made(Normed), tmp_path / "run", "inductor", procs=2, exchange="delta", sync_every=4, val={"fraction": 0.2},
        evaluate={"metrics": [held_until_both_have_it(tmp_path / "run")]},
    )  # fmt: skip
    assert result.leases["done"] == result.leases["total"] and result.metrics["loss"] < 3
    first, second = sorted(said(result))
    assert first.startswith("the compiled model: compiled in "), "by one"
    assert second.startswith("the compiled model: from the cache in "), "by the other, nothing but for it"
    assert not [file for file in late.rglob("*") if file.is_file()]
    (folder,) = kept.iterdir()
    assert folder.name.startswith("inductor-") and (folder / MANIFEST).exists()
    assert json.loads((result.run_dir / "summary.json").read_text())["compiling_s"] > 0


@pytest.mark.processes
@needs_compiler
def test_in_the_parent_it_trains_like_the_model_itself_and_leaves_torch_as_it_was(
    tmp_path: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, compiled = made(Normed), made(Normed)
    train(plain, tmp_path / "plain", "none", val={"fraction": 0.2})
    state = torch.get_rng_state()
    train(compiled, tmp_path / "compiled", "inductor", val={"fraction": 0.2})
    assert "the compiled model: from the cache in" in capsys.readouterr().out, "of the job before: no process is left"
    assert torch.equal(torch.get_rng_state(), state)
    assert str(kept) not in os.environ.get(compiled_model.WHERE, ""), "torch sets a default of its own"
    assert ulps(compiled, plain) <= BOUND_ULPS
    tracked = [model.get_buffer("norm.num_batches_tracked") for model in (compiled, plain)]
    assert tracked[0] == tracked[1], "warming up moved no buffer"


# ---- what is compiled before the first batch ------------------------------------------------------------------------


class Counting:
    """In inductor's place: how many graphs were made, and how often one was called."""

    def __init__(self) -> None:
        self.made = self.called = 0

    def __call__(self, graph: Callable[..., Any], inputs: list[Any]) -> Callable[..., Any]:
        self.made += 1

        def call(*values: Any) -> Any:
            self.called += 1
            return graph(*values)

        return call


def cut_short(batches: int) -> tuple[Tensor, Tensor]:
    """The last batch is a smaller one."""
    x, y = examples(batches)
    return x[:-3], y[:-3]


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Counting]:
    backend = Counting()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiled_model, "compiled", lambda model: torch.compile(model, backend=backend))
    yield backend
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: the job would be refused")
def test_what_a_worker_leaves_that_is_killed_while_it_compiles_goes_with_the_job(
    counting: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[Path] = []

    def leave(cache: ModelCache, run: Callable[[], object]) -> str:
        with cache.copied() as own:
            left.append(cache.scratch / "killed")  # type: ignore[operator]
            left[-1].mkdir()
            assert own.parent == cache.scratch
        run()
        return ""

    monkeypatch.setattr("hogwild.storage.artifact_cache.read_manifest", lambda folder: ({"files": {}}, True))
    monkeypatch.setattr(ModelCache, "fill", leave)
    train(made(Normed), tmp_path / "run", "inductor")
    assert left and not [*(tmp_path / "hogwild").iterdir()]


THAWED_BY = {"first.weight": 2, "first.bias": 3, "norm.weight": 4, "norm.bias": 6, "last.bias": 7}


@pytest.mark.slow
@pytest.mark.parametrize("made_before", [0, 5])
def test_what_each_thaw_trains_is_compiled_before_the_first_batch(counting: Counting, made_before: int) -> None:
    """More graphs than torch makes of one function by default: it would give up, and run the model itself."""
    place = Place(cut_short(4), {"compile": "inductor", "compile_key": "key"}, late=THAWED_BY)
    place.overtake(made_before)
    trainer, _ = place.trainer()
    assert all(param.grad is None for param in trainer.model.params) and place.is_untouched()
    trains = [param.requires_grad for param in trainer.model.params]
    assert trains.count(True) == 1 + sum(until <= made_before for until in THAWED_BY.values())
    made, called = counting.made, counting.called
    for _ in range(3):
        trainer.train(place.item(0, 4), go_on)
        trainer.evaluate(WorkItem(90, Kind.EVALUATE, 0, 0, 4))
    assert all(param.requires_grad for param in trainer.model.params)
    assert counting.made == made and counting.called == called + 2 * 3 * 4


# ---- the cache, without a compiler ----------------------------------------------------------------------------------


def write_into_it() -> None:
    (Path(os.environ[compiled_model.WHERE]) / "code.so").write_bytes(b"compiled")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelCache:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return ModelCache.of("key")


def test_a_damaged_library_is_not_loaded_but_made_again(cache: ModelCache) -> None:
    assert cache.fill(write_into_it) == "" and cache.is_whole()
    (cache.folder / "code.so").write_bytes(b"compi")
    assert not cache.is_whole() and not cache.folder.exists()
    assert cache.fill(write_into_it) == "" and cache.is_whole()
    assert cache.load(lambda: None) == "from the cache"


def test_what_a_folder_lacks_is_compiled_beside_it_and_a_stranger_in_it_is_not_loaded(cache: ModelCache) -> None:
    """Otherwise it would be loaded from then on, and nobody would know what it is."""
    cache.fill(write_into_it)
    before = {path: path.read_bytes() for path in cache.folder.iterdir()}
    (cache.folder / "stranger.so").write_bytes(b"of nobody knows whom")
    found: list[list[str]] = []

    def compile_more() -> None:
        where = Path(os.environ[compiled_model.WHERE])
        found.append(sorted(path.name for path in where.iterdir()))
        (where / "code.so").write_bytes(b"overwritten")
        (where / "more.so").write_bytes(b"compiled")

    cache.load(compile_more)
    assert found == [["code.so"]]
    (cache.folder / "stranger.so").unlink()
    assert {path: path.read_bytes() for path in cache.folder.iterdir()} == before
    assert [*cache.folder.parent.iterdir()] == [cache.folder], "nothing is left behind"


def test_of_a_load_that_fails_nothing_is_left(cache: ModelCache) -> None:
    cache.fill(write_into_it)
    with pytest.raises(ZeroDivisionError):
        cache.load(lambda: 1 / 0)
    assert [*cache.folder.parent.iterdir()] == [cache.folder] and cache.is_whole()


def test_what_cannot_be_copied_is_compiled(cache: ModelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full, or the folder has just been removed."""
    cache.fill(write_into_it)
    monkeypatch.setenv(compiled_model.WHERE, "the user's")

    def refuse(*names: Path) -> None:
        raise OSError("no space")

    monkeypatch.setattr("shutil.copy", refuse)
    found: list[str] = []
    assert "cannot be copied: no space" in cache.load(lambda: found.append(os.environ[compiled_model.WHERE]))
    assert found == ["the user's"]
    assert [*cache.folder.parent.iterdir()] == [cache.folder]


def test_what_a_killed_process_left_goes_when_code_is_used(cache: ModelCache) -> None:
    cache.fill(write_into_it)
    left = cache.folder.with_name(f"{TEMPORARY}{cache.folder.name}-killed")
    left.mkdir()
    os.utime(left, (0, 0))
    cache.load(lambda: None)
    assert [*cache.folder.parent.iterdir()] == [cache.folder]


def test_what_is_there_for_a_while_lies_in_the_jobs_folder(cache: ModelCache) -> None:
    scratch, found = new_scratch(), []
    mine = ModelCache(cache.folder, scratch)

    def look() -> None:
        write_into_it()
        found.append(Path(os.environ[compiled_model.WHERE]).parent)

    assert mine.fill(look) == "" and mine.load(look) == "from the cache"
    assert found == [scratch, scratch] and not [*scratch.iterdir()]
    assert mine.is_whole()


def test_of_a_compiler_that_fails_nothing_is_kept(cache: ModelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled_model.WHERE, "the user's")

    def fail() -> None:
        write_into_it()
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        cache.fill(fail)
    assert not [*cache.folder.parent.iterdir()]
    assert os.environ[compiled_model.WHERE] == "the user's"


def test_the_folder_is_for_a_number_of_threads(cache: ModelCache) -> None:
    torch.set_num_threads(2)
    assert ModelCache.of("key").folder != cache.folder


def test_the_key_is_of_what_decides_the_code_and_not_of_the_numbers() -> None:
    model, loss = made(Normed), nn.CrossEntropyLoss()
    key = model_key(model, loss, [64])
    assert key == model_key(Normed(), loss, [64])
    other = made(Normed)
    other.get_parameter("last.bias").requires_grad_(False)
    keys = {key, model_key(model, loss, [32]), model_key(made(Tied), loss, [64]), model_key(other, loss, [64])}
    assert len(keys) == 4


class Pooling(nn.Module):
    """Takes windows of any length, of any type of number."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        return self.last(x.float()).mean(1)


def windows(length: int, dtype: torch.dtype = torch.float32) -> TensorDataset:
    return TensorDataset(torch.zeros(20, length, FEATURES, dtype=dtype), torch.arange(20) % CLASSES)


def job_key(train: Any, val: Any = None, transform: Any = None, **settings: Any) -> str:
    """That of a whole job."""
    model, loss = made(Pooling), nn.CrossEntropyLoss()
    rule = optim.SGD(model.parameters(), lr=0.1)
    chosen = {"procs": 0, "batch_size": 8, "model": {"compile": "inductor"}, **settings}
    job = job_of(model, train, loss, rule, val, chosen)
    plan = planned(job)
    parts = from_objects(plan, model, loss, rule, train, val, Functions(transform=transform))
    return complete(plan, parts).compile_key


def halved(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    return x[:, ::2], target


class Records(IterableDataset):  # type: ignore[type-arg]
    """Streamed; of as many tensors in a window as `length` says, or of more and more where none is given."""

    def __init__(self, length: int = 0) -> None:
        self.length = length

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return ((torch.zeros(self.length or 2 + number, FEATURES), number % CLASSES) for number in range(20))


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: the job would be refused")
def test_the_key_is_of_what_a_row_of_every_field_is() -> None:
    """Otherwise a job would find the folder of another, and every worker would compile for itself what is missing."""
    keys = [
        job_key(windows(5)),
        job_key(windows(9)),
        job_key(windows(5, torch.int32)),
        job_key(windows(5), transform=halved),
        job_key(Records(5)),
        job_key(Records(9)),
        job_key(Records(), data={"padding": {"value": 0}}),
        job_key(windows(5), windows(5)),
        job_key(windows(5), Records(9)),
        job_key(Records(), Records(), data={"padding": {"value": 0}}),
    ]
    assert len(set(keys)) == len(keys)
    again = [job_key(windows(5)), job_key(Records(9)), job_key(windows(5), Records(9))]
    assert again == [keys[0], keys[5], keys[8]]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: the job would be refused")
def test_the_key_is_of_what_each_thaw_adds_and_not_of_when() -> None:
    def frozen(**until: int) -> str:
        freeze = [{"params": [f"last.{name}"], "until": update} for name, update in until.items()]
        return job_key(windows(5), model={"compile": "inductor", "freeze": freeze})

    assert len({frozen(), frozen(weight=3), frozen(bias=3)}) == 3
    assert frozen(weight=3) == frozen(weight=7)


def test_the_key_is_of_the_source_of_the_models_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from torch import nn, tanh\nclass Mine(nn.Linear):\n    def forward(self, x):\n        return {}\n"
    keys = set()
    for name, formula in (("one", "tanh(x)"), ("two", "tanh(2 * x)")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine_of_a_test.py").write_text(source.format(formula))
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(tmp_path / name))
            mine = __import__("mine_of_a_test").Mine(3, 3)
            keys.add(model_key(mine, None, []))
            del sys.modules["mine_of_a_test"]
    assert len(keys) == 2


@pytest.mark.parametrize("missing", ["compiler", "headers"])
def test_without_a_compiler_the_error_names_it_before_workers_start(
    tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "compiler":
        monkeypatch.setenv("CXX", "no-such-compiler")
    else:
        monkeypatch.setenv("CXX", sys.executable)  # some program
        monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(ModelError, match="no-such-compiler" if missing == "compiler" else "Python.h") as caught:
        train(made(Normed), tmp_path / "run", "inductor")
    assert caught.value.code == "model/no-compiler"
    assert not (tmp_path / "run").exists()


def test_what_torch_compile_cannot_compile_is_an_error_of_the_model() -> None:
    from torch._dynamo.exc import Unsupported

    def run() -> None:
        raise Unsupported("a call of a thing")

    with pytest.raises(ModelError, match=r"cannot compile the model.*a call of a thing") as caught:
        compiled_model.refusing(run)()
    assert caught.value.code == "model/not-compilable"


@pytest.mark.processes
def test_a_job_without_it_imports_no_compiler() -> None:
    """torch._dynamo takes a second, in every worker."""
    program = (
        "import sys, torch; from hogwild.training.compiled_model import make; make('none', torch.nn.Linear(2, 2));"
        "import hogwild.workers.child.build; print('torch._dynamo' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"
