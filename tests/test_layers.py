"""The architecture as data: who may import whom, and which machinery has only one home. Files are read as syntax trees;
only the last table imports anything, in a process of its own."""

import ast
import json
import multiprocessing.util
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch, fnmatchcase
from functools import cache, cached_property
from itertools import chain
from pathlib import Path

import pytest

from tests.helpers.processes import PATIENCE_S

HOME = Path(__file__).resolve().parents[1]
LINES_LIMIT = 800
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class Import:
    """`module` is what is imported; `name` an attribute taken from it, or ''. `inside`: the function it stands in."""

    module: str
    name: str
    inside: str
    line: int


@dataclass(frozen=True)
class Source:
    """One file of ours. `module` is its dotted name, `path` its place below the project's folder."""

    path: str
    module: str
    tree: ast.Module

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        return tuple(self._imports())

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(self.tree))

    @cached_property
    def attributes(self) -> tuple[tuple[int, str], ...]:
        """(Line, dotted name) of each."""
        return tuple((node.lineno, dotted(node)) for node in self.nodes if isinstance(node, ast.Attribute))

    def _imports(self) -> Iterator[Import]:
        package = self.module if self.path.endswith("__init__.py") else self.module.rpartition(".")[0]
        for node, inside in nodes_with_function(self.tree):
            if isinstance(node, ast.Import):
                yield from (Import(alias.name, "", inside, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    base = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1], base]).strip(".")
                yield from (Import(base, alias.name, inside, node.lineno) for alias in node.names)

    def ours(self) -> Iterator[tuple[str, Import]]:
        """The modules of this project that it imports."""
        for found in self.imports:
            for target in (f"{found.module}.{found.name}", found.module):
                if target in modules() and target != self.module:
                    yield target, found
                    break


def nodes_with_function(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Every node below `tree`, in no order, with the name of the innermost function around it."""
    rest = [(tree, "")]
    while rest:
        node, inside = rest.pop()
        name = getattr(node, "name", "<lambda>") if isinstance(node, FUNCTIONS) else ""
        children = [(child, name or inside) for child in ast.iter_child_nodes(node)]
        yield from children
        rest += children


@cache
def sources(*folders: str) -> tuple[Source, ...]:
    files = {file.resolve() for top in ("hogwild", "workers") for file in (HOME / top).rglob("*.py")}
    found = (source_of(file) for file in sorted(files))
    chosen = tuple(source for source in found if source.path.startswith(folders or ("hogwild", "workers")))
    assert chosen
    return chosen


def source_of(file: Path) -> Source:
    path = file.relative_to(HOME)
    parts = [part for part in path.with_suffix("").parts if part != "__init__"]
    if parts[0] == "workers":  # hogwild/workers is a link to it
        parts.insert(0, "hogwild")
    elif parts[1:2] == ["workers"]:  # an unpacked sdist, where the folder itself is there
        path = path.relative_to("hogwild")
    return Source(str(path), ".".join(parts), ast.parse(file.read_text(), str(path)))


@cache
def modules() -> frozenset[str]:
    return frozenset(source.module for source in sources())


def place(source: Source, line: int) -> str:
    return f"{source.path}:{line}"


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(path, pattern) for pattern in patterns)


# ---- who may import whom --------------------------------------------------------------------------------------------

# From the bottom to the top. A name is a package, with all that is below it, or a single module; the longest name that
# fits is a file's place. A file imports from its own package and from floors below: at module level, inside functions,
# and for types alike. What has no place is an error, so that a new package is given one by a decision.
FLOORS = (
    "hogwild.errors hogwild.formatting hogwild.version",
    "hogwild.user_code hogwild.host",
    "hogwild.by_value",
    "hogwild.storage",
    "hogwild.losses hogwild.optimizers",
    "hogwild.kernels",
    "hogwild.nn",
    "hogwild.scheduling",
    "hogwild.cluster",
    "hogwild.metrics",
    "hogwild.shared_memory",
    "hogwild.devices",
    "hogwild.feeds",
    "hogwild.config",
    "hogwild.planning",
    "hogwild.parameters",
    "hogwild.training",
    "hogwild.data",
    "hogwild.models",
    "hogwild.job",
    "hogwild.inference",
    "hogwild.monitoring",
    "hogwild.report",
    "hogwild.chaos hogwild.service",
    "hogwild.workers.messages hogwild.workers.warning_reports",
    "hogwild.workers.child",
    "hogwild.workers.processes",
    "hogwild.workers.session",
    "hogwild.workers.loading",
    "hogwild.workers.supervision",
    "hogwild.workers.execution",
    "hogwild.workers.run",
    "hogwild.searching",
    "hogwild.api",
    "hogwild.estimator",
    "hogwild.cli",
    "hogwild hogwild.__main__",
    "hogwild.workers",
)
PLACES = {name: number for number, row in enumerate(FLOORS) for name in row.split()}
FACES = {"hogwild", "hogwild.workers"}  # the packages themselves are their own __init__ alone

# Decisions without torch, clock, process, lock or file: event in, answer out.
PURE = (
    "hogwild.scheduling.*",
    "hogwild.cluster.*",
    "hogwild.service.states",
    "hogwild.service.schedule",
    "hogwild.workers.processes.roster",
)
IMPURE = {"torch", "time", "os", "threading", "multiprocessing", "socket", "subprocess", "random", "psutil"}

# hogwild/ is what parent and workers share; importing it starts none of the supervisor's code.
ASKS_WORKERS = {
    ("hogwild/cli/main.py", "hogwild.workers.run"),
    ("hogwild/cli/results.py", "hogwild.workers.loading.predicting"),
    ("hogwild/cli/jobs.py", "hogwild.workers.processes.job_server"),
    ("hogwild/searching/attempt.py", "hogwild.workers.processes.job_server"),
    ("hogwild/api.py", "hogwild.workers.run"),
    ("hogwild/api.py", "hogwild.workers.session.startup"),
    ("hogwild/api.py", "hogwild.workers.processes.fork_server"),
}


def home_of(module: str) -> str:
    """The entry of FLOORS that a module belongs to."""
    fitting = [name for name in PLACES if module == name or (name not in FACES and module.startswith(f"{name}."))]
    assert fitting, f"{module} has no place in FLOORS"
    return max(fitting, key=len)


@pytest.mark.slow
def test_every_import_goes_to_a_floor_below_or_stays_in_its_package() -> None:
    upward = [
        f"{place(source, found.line)}: {source.module} imports {target}, which is not below it"
        for source in sources()
        for target, found in source.ours()
        if (own := home_of(source.module)) != (other := home_of(target)) and PLACES[other] >= PLACES[own]
    ]
    assert upward == []


def test_every_place_in_the_floors_exists() -> None:
    assert set(PLACES) <= modules()


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = {source.module: {target for target, _ in source.ours()} for source in sources()}
    while graph:
        free = {module for module, needs in graph.items() if not needs & graph.keys()}
        assert free, f"a circle among {sorted(graph)}"
        graph = {module: needs for module, needs in graph.items() if module not in free}


def test_decisions_are_pure() -> None:
    impure = [
        f"{place(source, found.line)}: {found.module}"
        for source in sources()
        if matches(source.module, PURE)
        for found in source.imports
        if found.module.split(".")[0] in IMPURE
    ]
    assert impure == []


def test_a_package_says_in_its_docstring_what_it_is_for() -> None:
    silent = [s.path for s in sources() if s.path.endswith("__init__.py") and not ast.get_docstring(s.tree)]
    assert silent == []


@pytest.mark.slow
def test_hogwild_imports_workers_only_inside_functions_of_the_command_line_and_the_library_call() -> None:
    asked = {
        (source.path, target, bool(found.inside))
        for source in sources("hogwild")
        for target, found in source.ours()
        if target.startswith("hogwild.workers.")
    }
    assert asked == {(path, target, True) for path, target in ASKS_WORKERS}


# ---- one home for each piece of machinery ---------------------------------------------------------------------------

HOST = ("hogwild/host/*.py",)


def dotted(node: ast.AST) -> str:
    """`a.b.c` for a chain of names; what is called or indexed on the way leaves a `?`."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else "?"


def docstrings(source: Source) -> set[ast.AST]:
    return {
        node.body[0].value
        for node in source.nodes
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }


def uses_module(module: str) -> Callable[[Source], Iterator[int]]:
    """Lines that import `module`, something of it, or reach it as an attribute of what is imported."""

    def look(source: Source) -> Iterator[int]:
        for found in source.imports:
            names = (found.module, f"{found.module}.{found.name}")
            if any(name == module or name.startswith(module + ".") for name in names):
                yield found.line
        if "." in module:
            yield from (line for line, name in source.attributes if name == module)

    return look


def uses_attribute(pattern: str) -> Callable[[Source], Iterator[int]]:
    def look(source: Source) -> Iterator[int]:
        yield from (line for line, name in source.attributes if fnmatchcase(name, pattern))
        for found in source.imports:
            if fnmatchcase(f"{found.module}.{found.name}", pattern):
                yield found.line

    return look


def uses_any(*patterns: str) -> Callable[[Source], Iterator[int]]:
    return lambda source: chain(*(uses_attribute(pattern)(source) for pattern in patterns))


def says(*beginnings: str) -> Callable[[Source], Iterator[int]]:
    """Lines with a text, docstrings apart, that begins so."""

    def look(source: Source) -> Iterator[int]:
        words = docstrings(source)
        for node in source.nodes:
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or node in words:
                continue
            if any(node.value == start or node.value.startswith(start + "/") for start in beginnings):
                yield node.lineno

    return look


def calls(name: str) -> Callable[[Source], Iterator[int]]:
    def look(source: Source) -> Iterator[int]:
        for node in source.nodes:
            if isinstance(node, ast.Call) and (called := dotted(node.func)).rpartition(".")[2] == name:
                if called.startswith("psutil."):  # a look at a process, not a new one
                    continue
                yield node.lineno

    return look


HOMES: dict[str, tuple[Callable[[Source], Iterator[int]], tuple[str, ...]]] = {
    "torch.cuda": (uses_module("torch.cuda"), ("hogwild/devices/*.py",)),
    "torch.distributed": (uses_module("torch.distributed"), ("workers/child/communicator.py",)),
    "/proc and /sys": (says("/proc", "/sys"), HOST),
    "os.sched_*": (uses_attribute("os.sched_*"), HOST),
    "ctypes": (uses_module("ctypes"), HOST),
    "signal": (uses_module("signal"), HOST),
    "os.kill": (uses_attribute("os.kill*"), HOST),
    "psutil": (uses_module("psutil"), HOST),
    "fcntl": (uses_module("fcntl"), HOST),
    "resource": (uses_module("resource"), HOST),
    "Process(": (calls("Process"), ("workers/processes/handle.py", "workers/processes/fork_server.py")),
    "os.fork": (uses_attribute("os.fork*"), ("workers/processes/fork_server.py",)),
    "cloudpickle's pickles": (uses_any("cloudpickle.dump*", "cloudpickle.Pickler"), ("hogwild/by_value.py",)),
    "numba": (uses_module("numba"), ("hogwild/kernels/*.py",)),
    "fastapi": (
        uses_module("fastapi"),
        tuple(f"hogwild/service/{name}.py" for name in ("app", "routes_*")),
    ),
    # Somebody may set it: it is written down, for people, and no deadline is ever counted by it (FAILURES 31).
    "the wall clock": (
        uses_any(
            *("time.time", "time.time_ns", "time.strftime", "time.localtime", "time.gmtime", "time.CLOCK_REALTIME"),
            *("*datetime.now", "*datetime.utcnow", "*datetime.today"),
        ),
        (
            "workers/session/journal.py",
            "workers/processes/stacks.py",
            "hogwild/data/cache.py",  # beside the times of a file, which are of that clock
            "hogwild/storage/checkpoint.py",
            "hogwild/storage/run_directory.py",
            "hogwild/host/other_jobs.py",
            "hogwild/chaos/*.py",
            "hogwild/searching/attempt.py",
            "hogwild/service/*.py",
            "hogwild/monitoring/run_status.py",
            "hogwild/report/run_view.py",
        ),
    ),
}
UNUSED = {"os.kill", "os.fork"}  # perhaps not even at home


@pytest.mark.slow
@pytest.mark.parametrize("machinery", sorted(HOMES))
def test_machinery_is_used_only_at_its_home(machinery: str) -> None:
    look, homes = HOMES[machinery]
    strangers = [
        place(source, line) for source in sources() if not matches(source.path, homes) for line in sorted(look(source))
    ]
    assert strangers == []


def test_a_kernel_asks_what_is_finite_in_the_way_that_is_not_folded_away() -> None:
    """Where sums may be reordered numba computes `np.isfinite(x)` as x - x == 0, and takes that for true."""
    look = uses_any("np.isfinite", "numpy.isfinite")
    kernels = [source for source in sources() if source.path.startswith("hogwild/kernels/")]
    assert kernels and [place(source, line) for source in kernels for line in look(source)] == []


@pytest.mark.slow
@pytest.mark.parametrize("machinery", sorted(HOMES.keys() - UNUSED))
def test_machinery_is_found_where_it_is_at_home(machinery: str) -> None:
    """Otherwise the rule above would look for nothing."""
    look, homes = HOMES[machinery]
    assert any(True for source in sources() if matches(source.path, homes) for _ in look(source))


# ---- no lock crosses a process --------------------------------------------------------------------------------------

CROSSING = {
    "Barrier",
    "BoundedSemaphore",
    "Condition",
    "Event",
    "JoinableQueue",
    "Lock",
    "Manager",
    "Pool",
    "ProcessPoolExecutor",
    "Queue",
    "RLock",
    "Semaphore",
    "SimpleQueue",
    "SyncManager",
}
WITHIN_ONE_PROCESS = ("threading", "queue", "asyncio", "torch.cuda")  # its events, unless they are asked to cross


def crossing(source: Source) -> Iterator[int]:
    """Lines that make or import one of them from anywhere but a module whose objects stay in one process."""
    homes = {found.name: found.module for found in source.imports if found.name}
    for found in source.imports:
        if found.name in CROSSING and found.module not in WITHIN_ONE_PROCESS:
            yield found.line
    for node in source.nodes:
        if isinstance(node, ast.Call):
            owner, _, name = dotted(node.func).rpartition(".")
            if name in CROSSING and (owner or homes.get(name)) not in WITHIN_ONE_PROCESS:
                yield node.lineno


@pytest.mark.slow
def test_no_lock_queue_or_pool_of_multiprocessing_exists() -> None:
    assert [place(source, line) for source in sources() for line in crossing(source)] == []


@pytest.mark.parametrize(
    ("code", "is_crossing"),
    [
        ("import multiprocessing as mp\nmp.Queue()", True),
        ("from torch.multiprocessing import SimpleQueue", True),
        ("get_context('spawn').Lock()", True),
        ("self._context.Event()", True),
        ("from concurrent.futures import ProcessPoolExecutor", True),
        ("import threading\nthreading.Lock()", False),
        ("from threading import Event\nEvent()", False),
        ("import queue\nqueue.SimpleQueue()", False),
        ("WorkQueue(); self.queue.lease(0)", False),
    ],
)
def test_the_search_for_locks_finds_them(code: str, is_crossing: bool) -> None:
    assert bool(list(crossing(Source("hogwild/x.py", "hogwild.x", ast.parse(code))))) == is_crossing


@pytest.mark.parametrize(
    ("code", "machinery"),
    [
        ("import torch\ntorch.cuda.is_available()", "torch.cuda"),
        ("from torch import cuda", "torch.cuda"),
        ("import torch.cuda.nvtx", "torch.cuda"),
        ("import torch.distributed as dist\ndist.TCPStore()", "torch.distributed"),
        ("from pathlib import Path\nPath('/proc') / 'self'", "/proc and /sys"),
        ("open(f'/sys/fs/{x}')", "/proc and /sys"),
        ("from os import sched_setaffinity", "os.sched_*"),
        ("def f():\n    import signal", "signal"),
        ("from signal import SIGKILL", "signal"),
        ("context.Process(target=f)", "Process("),
        ("os.forkpty()", "os.fork"),
        ("import cloudpickle\ncloudpickle.dumps(1)", "cloudpickle's pickles"),
        ("import time\nuntil = time.time() + 3", "the wall clock"),
        ("from time import time", "the wall clock"),
        ("import datetime\ndatetime.datetime.now()", "the wall clock"),
        ("os.killpg(1, 9)", "os.kill"),
    ],
)
def test_the_search_for_machinery_finds_it(code: str, machinery: str) -> None:
    look, _ = HOMES[machinery]
    assert list(look(Source("hogwild/x.py", "hogwild.x", ast.parse(code))))
    harmless = '"""torch.cuda, /proc, a signal, os.fork"""\nsignal_name = process = fork = resource = 1'
    assert not list(look(Source("hogwild/x.py", "hogwild.x", ast.parse(harmless))))


# ---- what starts fast, and a child's first lines, load no torch -----------------------------------------------------

LIGHT = (
    "hogwild",
    "hogwild.__main__",
    "hogwild.errors",
    "hogwild.cli*",
    "hogwild.config*",
    "hogwild.user_code",
    "hogwild.scheduling.batch_plan",
    "hogwild.scheduling.work_queue",
    "hogwild.scheduling.work_queue",
    "hogwild.planning.cpu_plan",
    "hogwild.planning.job_plan",
    "hogwild.planning.calibration",
    "hogwild.chaos*",
    "hogwild.service*",
    "hogwild.storage.run_directory",
    "hogwild.monitoring.profile_report",
    "hogwild.host*",
    "hogwild.workers",
    "hogwild.workers.child.entry",
    "hogwild.workers.messages",
    "hogwild.workers.processes.roster",
    "hogwild.workers.session.startup",
    "hogwild.workers.processes.handle",
    "hogwild.workers.processes.group",
    "hogwild.workers.run",
)
# From a lease to its acknowledgement: tests/faults/protocol.py runs, and kills, it in processes that are forked.
TORCHLESS = (
    "hogwild.scheduling.batch_plan",
    "hogwild.metrics.result_row",
    "hogwild.scheduling.work_queue",
    "hogwild.shared_memory.scoreboard",
    "hogwild.shared_memory.region",
    "hogwild.scheduling.work_queue",
    "hogwild.workers.messages",
    "hogwild.workers.child.profiler",
    "hogwild.workers.child.trainer",
)
IMPORT_EACH = """
import importlib, json, sys
heavy, guilty = sys.argv[1].split(), {}
for name in sys.argv[2:]:
    before = {each for each in heavy if each in sys.modules}
    importlib.import_module(name)
    guilty[name] = sorted({each for each in heavy if each in sys.modules} - before)
print(json.dumps(guilty))
"""


@pytest.mark.processes
def test_light_modules_load_neither_torch_nor_numpy_nor_numba() -> None:
    assert loads(LIGHT, "torch numpy numba pandas scipy") == {}


@pytest.mark.processes
def test_the_way_of_an_item_through_a_worker_loads_no_torch() -> None:
    assert loads(TORCHLESS, "torch numba pandas scipy") == {}


def loads(patterns: tuple[str, ...], heavy: str) -> dict[str, list[str]]:
    """Modules that load some of `heavy`, each with what it loads."""
    names = [name for name in sorted(modules()) if matches(name, patterns)]
    assert all(any(fnmatch(name, pattern) for name in names) for pattern in patterns)
    ended = subprocess.run(
        [sys.executable, "-c", IMPORT_EACH, heavy, *names],
        cwd=HOME,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    guilty = json.loads(ended.stdout)
    assert guilty.keys() == set(names)
    return {name: loaded for name, loaded in guilty.items() if loaded}


# ---- plain English --------------------------------------------------------------------------------------------------

# A docstring begins with a verb or a noun: the reader should not have to wait for the subject.
RELATIVE = re.compile(r"(What|Whose|Whoever|Whatever|Of|How|Where|Whether|Which|Who|When|That|Why)\b")


def documented(source: Source) -> Iterator[tuple[int, str]]:
    """(line, docstring) of the module, its classes and functions."""
    for node in source.nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS[:2])) and (words := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), words


def test_a_docstring_begins_with_a_verb_or_a_noun() -> None:
    riddles = [
        f"{place(source, line)}: {words.splitlines()[0]}"
        for source in sources()
        for line, words in documented(source)
        if RELATIVE.match(words)
    ]
    assert riddles == []


def test_a_class_name_stands_for_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for source in sources():
        for node in source.nodes:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(place(source, node.lineno))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


# ---- files ----------------------------------------------------------------------------------------------------------

FOREIGN = {".git", ".venv", "runs", "dist", "build", "__pycache__"}
# Somebody's home or workplace: nothing of ours lies there on another machine.
MACHINE_PATH = re.compile(r"(?<![\w.~…}>-])/(?:home|root|Users|work|mnt|media|private)/[\w.-]+")


@cache
def tracked() -> tuple[Path, ...]:
    """Return the files that git knows or would add; every file of the folder where there is no git (an unpacked
    sdist)."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=HOME,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0 and listed.stdout:
        files = [HOME / name for name in listed.stdout.decode().split("\0") if name]
    else:
        files = [file for file in HOME.rglob("*") if not FOREIGN & set(file.relative_to(HOME).parts)]
    return tuple(file for file in files if file.is_file())


def texts() -> Iterator[tuple[str, str]]:
    for file in tracked():
        content = file.read_bytes()
        if b"\0" not in content:
            yield str(file.relative_to(HOME)), content.decode()


@pytest.mark.processes
def test_no_file_of_code_is_longer_than_the_limit() -> None:
    long = {
        path: len(text.splitlines())
        for path, text in texts()
        if path.endswith(".py") and not path.startswith("tests/") and len(text.splitlines()) > LINES_LIMIT
    }
    assert long == {}


@pytest.mark.processes
def test_no_tracked_file_names_a_place_of_somebodys_machine() -> None:
    found = [
        f"{path}:{number}: {line.strip()}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATH.search(line) or str(HOME) in line or (str(Path.home()) != "/" and f"{Path.home()}/" in line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "is_machine_path"),
    [
        ("open('/ho" + "me/ada/data.npz')", True),
        ("DATA=/mn" + "t/disk1", True),
        ("see …/home/ada or docs/work/plan.md", False),
        ("/usr/bin/env python", False),
    ],
)
def test_the_search_for_machine_paths_finds_them(line: str, is_machine_path: bool) -> None:
    assert bool(MACHINE_PATH.search(line)) == is_machine_path


# ---- tests ----------------------------------------------------------------------------------------------------------


def test_a_test_without_the_mark_can_start_no_process() -> None:
    with pytest.raises(RuntimeError, match=r"pytest\.mark\.processes"):
        subprocess.run([sys.executable, "-c", ""], check=False)
    with pytest.raises(RuntimeError, match=r"pytest\.mark\.processes"):
        multiprocessing.util.spawnv_passfds(b"/bin/true", ["true"], [])  # type: ignore[attr-defined]


# ---- docs/architecture.md -------------------------------------------------------------------------------------------


def section(title: str) -> str:
    text = (HOME / "docs" / "architecture.md").read_text()
    return text.partition(f"## {title}")[2].partition("\n## ")[0]


def test_every_package_stands_in_the_table_of_packages_and_nothing_else() -> None:
    table = section("The packages, from the bottom to the top")
    paths = [name.replace(".", "/") for row in FLOORS for name in row.split() if name not in FACES]
    there = {path.removeprefix("hogwild/") if "/workers/" in path else path for path in paths if (HOME / path).is_dir()}
    assert set(re.findall(r"`((?:hogwild|workers)/\w+)/`", table)) == there


def test_where_do_i_change_names_files_that_are_there() -> None:
    rows = [
        line for line in section("Where do I change …").splitlines() if line.startswith("| ") and "|---" not in line
    ]
    named = {name for row in rows[1:] for name in re.findall(r"`((?:hogwild|workers|tests|docs)/[\w/.]+)`", row)}
    assert named
    there = {name for name in named if (HOME / name).exists() or (HOME / "hogwild" / name).exists()}
    assert named == there


def test_the_picture_is_what_the_script_draws() -> None:
    pictures = HOME / "docs" / "pictures"
    made = runpy.run_path(str(pictures / "draw_architecture.py"))["draw"]()
    assert (pictures / "architecture.svg").read_text() == made, "run: python docs/pictures/draw_architecture.py"
