"""Parts of an update on a device, recorded once and replayed: a CUDA graph is one launch instead of a hundred.

    a part runs as it is, AFTER times          with the same key: the same memory, shapes, precision, rates
    then a trial, on the batch at hand:        run, capture; from the same start again: replay; and again: run
        both runs and the replay agree         trusted: replayed from now on
        it cannot be captured, it differs,     never again in this worker, and the log says why
        or running it changes Python's state
        NaN, or the two runs differ            not trusted; tried again later
    a trusted part, now and then:              the trial again, without the capture

A trial ends with the results of its first run, so whatever it finds, no update is lost or wrong. A replay runs no
Python. So a part may be captured only if running it changes nothing in Python that it could read the next time: no
attribute of the model, no closure, no global, no random state of the host. What `python_state` cannot see (a file, a
clock) is found when a later trial differs.

Nothing here knows CUDA: `Accelerator.capture` does, and the rules for it stand there. Memory: a part writes only
tensors that live outside the graphs, so all graphs of a worker share one pool."""

import math
import random
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hogwild.devices.accelerator import Accelerator

AFTER = 8  # runs before a part is captured: kernels are chosen, gradients have their place, state exists
FREE, EACH = 8, 500  # captures of a worker: FREE, and one for each so many runs (a rate may change with every epoch)
MOST = 16  # graphs kept, the newest
FIRST_CHECK, LONGEST = 16, 4096  # replays between two trials: doubled each time
AGREES = 1e-3  # a replay's error over the change that the part makes: more than sums in another order, less than a bug
NOISE = 0.5  # two runs that differ by more than this share tell nothing: other workers write the parameters
KEYS = 256  # counted at a time


class Done(Enum):
    """The way in which `run` did a part: by its Python, as always; by a replay; in a trial, with a run's results."""

    RAN = 0
    REPLAYED = 1
    TRIED = 2


@dataclass(slots=True)
class _Graph:
    replay: Callable[[], object]
    replays: int = 0
    gap: int = FIRST_CHECK
    check_at: int = FIRST_CHECK


class Graphs:
    """The graphs of one worker. `roots`: the model, the loss, and whatever else a part's Python belongs to."""

    def __init__(self, accelerator: Accelerator, roots: Sequence[object], say: Callable[[str], None]) -> None:
        self._accelerator, self._roots, self._say = accelerator, roots, say
        self._graphs: dict[Hashable, _Graph] = {}
        self._seen: dict[Hashable, int] = {}
        self._refused: set[Hashable] = set()
        self._state: list[object] | None = None  # Python's, when the graphs were captured
        self._runs = self._captures = self.replays = 0
        self._is_said = False
        self.stopped: str | None = None  # why nothing is captured any more; None: it is

    def stop(self, reason: str) -> None:
        """Run everything as it is from now on. Says the reason, if there is one."""
        if self.stopped is None and reason:
            self._say(f"updates are not replayed as graphs: {reason}")
        self.stopped = self.stopped or reason
        self.forget()

    def forget(self) -> None:
        """Drop all graphs: what they read or write is replaced."""
        self._graphs.clear()
        self._seen.clear()
        self._refused.clear()
        self._state = None

    def refuse(self, key: Hashable) -> None:
        """Run this part as it is from now on."""
        self._graphs.pop(key, None)
        self._refused.add(key)

    def run(self, key: Hashable, work: Callable[[], None], written: Callable[[], Sequence[Tensor]]) -> Done:
        """Do `work`. Equal keys: the same work on the same memory. `written`: every tensor on the device that it
        writes and something reads later."""
        if self.stopped is not None:
            work()
            return Done.RAN
        self._runs += 1
        graph = self._graphs.get(key)
        if graph is not None and graph.replays < graph.check_at:
            graph.replays += 1
            self.replays += 1
            graph.replay()
            return Done.REPLAYED
        if graph is None and (key in self._refused or not self._is_due(key)):
            work()
            return Done.RAN
        self._try(key, graph, work, written)
        return Done.TRIED

    def _is_due(self, key: Hashable) -> bool:
        if len(self._seen) >= KEYS:  # shapes or rates that always change
            self._seen.clear()
        seen = self._seen[key] = self._seen.get(key, 0) + 1
        return seen > AFTER and self._captures < FREE + self._runs // EACH

    def _try(
        self, key: Hashable, graph: _Graph | None, work: Callable[[], None], written: Callable[[], Sequence[Tensor]]
    ) -> None:
        """Run `work`; find out whether a replay does the same, and use it from now on, or not."""
        tensors, draw = written(), self._accelerator.generator
        python, host = python_state(*self._roots), _host_random(draw)
        try:
            begun, seed = _copies(tensors), draw.get_state()
        except RuntimeError as error:  # no memory
            self.stop(_first_line(error))
            work()
            return
        work()
        changes = _why_not_static(python, python_state(*self._roots), host, _host_random(draw))
        if changes:
            self.stop(changes)
            return
        if self._graphs and not same_state(python, self._state or []):
            self.forget()  # captured with other settings of the model; this trial counts for nothing
            return
        try:
            ended, last_seed = _copies(tensors), draw.get_state()
        except RuntimeError as error:  # no memory: the run counts
            self.stop(_first_line(error))
            return

        def start_again() -> None:
            _put(tensors, begun)
            draw.set_state(seed)

        try:
            start_again()
            if graph is None:
                self._captures += 1
                self._seen.pop(key, None)
                graph = _Graph(self._accelerator.capture(work))
                start_again()
            graph.replay()
            replayed = _copies(tensors)
            start_again()
            work()
            agrees = _agrees(begun, ended, tensors, replayed)
        except Exception as error:  # whatever user code or the driver raises: the results of the run are put back
            _put(tensors, ended)  # raises if the device is lost: the worker ends as after any such error
            self.stop(f"capturing failed: {_first_line(error)}")
            return
        finally:
            draw.set_state(last_seed)
        _put(tensors, ended)
        if agrees is False:
            self.stop("a replay does not do what the model does")
        elif agrees and same_state(python, python_state(*self._roots)):
            self._trust(key, graph, python)

    def _trust(self, key: Hashable, graph: _Graph, python: list[object]) -> None:
        if not self._is_said:
            self._say("updates are replayed as graphs")
            self._is_said = True
        if key in self._graphs:
            graph.gap = min(2 * graph.gap, LONGEST)
            graph.check_at = graph.replays + graph.gap
        elif len(self._graphs) >= MOST:
            del self._graphs[next(iter(self._graphs))]
        self._graphs[key], self._state = graph, python


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _put(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.detach().copy_(value)


def _first_line(error: BaseException) -> str:
    while error.__context__ is not None:  # the end of a failed capture raises another error
        error = error.__context__
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def _agrees(
    begun: Sequence[Tensor], first: Sequence[Tensor], second: Sequence[Tensor], replayed: Sequence[Tensor]
) -> bool | None:
    """Return whether a replay did what two runs did, `first` before and `second` after it; None: it cannot be told.
    The measure is the change since `begun`, and what the two runs differ by."""
    for start, one, two, again in zip(begun, first, second, replayed, strict=True):
        if not (one.is_floating_point() or one.is_complex()):
            if not torch.equal(one, again):
                return False
            continue
        change, noise, error, size = map(_norm, (one - start, one - two, again - one, one))
        if not all(map(math.isfinite, (change, noise, size))):
            return None
        allowed = AGREES * change + 4 * noise + 4 * torch.finfo(one.dtype).eps * size
        if not error <= allowed:
            return False
        if noise > NOISE * change + 4 * torch.finfo(one.dtype).eps * size:
            return None
    return True


def _norm(tensor: Tensor) -> float:
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    return float(torch.linalg.vector_norm(tensor.to(wide)))


# ---- Python's state

PLAIN = (int, float, complex, str, bytes, type(None))
CONTAINERS = (dict, list, tuple, set, frozenset)
LONGEST_LIST = 1000  # longer ones are watched by their length
MOST_OBJECTS = 20_000
FOREIGN = {"torch", "numpy", "builtins"} | sys.stdlib_module_names


def python_state(*roots: object) -> list[object]:
    """Return all that the code of `roots` could remember from one call to the next, as far as it is found: attributes
    of modules and of user objects, hooks, closures, class attributes and globals that user functions name; plain values
    by value, tensors and everything else by identity. `same_state` compares two. Holds references, so that no new
    object has the identity of an old one."""
    found: list[object] = []
    seen: set[int] = set()
    stack: list[object] = [*reversed(roots)]
    while stack and len(found) < MOST_OBJECTS:
        one = stack.pop()
        if isinstance(one, np.ndarray) and one.nbytes <= 1 << 20:
            found += [one, one.tobytes()]
            continue
        is_value = isinstance(one, CONTAINERS)  # equal if its content is
        found.append(type(one) if is_value else one)
        if isinstance(one, (*PLAIN, Tensor)) or id(one) in seen:
            continue
        if not isinstance(one, tuple):  # the same one in two places now may be two equal ones later
            seen.add(id(one))
        parts = _parts(one)
        found.append(len(parts))
        if len(parts) <= LONGEST_LIST or isinstance(one, nn.Module):
            stack += reversed(parts)
    return found


def _parts(one: object) -> list[object]:
    """Return what an object remembers."""
    if isinstance(one, Mapping):
        return [part for pair in one.items() for part in pair]
    if isinstance(one, list | tuple):
        return [*one]
    if isinstance(one, set | frozenset):
        return sorted(one, key=repr) if len(one) <= LONGEST_LIST else [None] * len(one)
    if isinstance(one, random.Random):
        return [repr(one.getstate())]
    if isinstance(one, np.random.Generator | np.random.RandomState):
        bits: Any = one.get_state() if isinstance(one, np.random.RandomState) else one.bit_generator.state
        return [repr(bits)]
    if isinstance(one, CellType):
        return [one.cell_contents] if one != CellType() else []
    if isinstance(one, MethodType):
        return [one.__func__, one.__self__]
    if isinstance(one, FunctionType):
        if _is_foreign(one.__module__):
            return []
        named = (one.__globals__.get(name) for name in one.__code__.co_names)
        return [*vars(one).values(), *(one.__closure__ or ()), one.__defaults__, *filter(_is_watched, named)]
    kind = type(one)
    if isinstance(one, type) or not (isinstance(one, nn.Module) or not _is_foreign(kind.__module__)):
        return []
    own = [part for base in kind.__mro__ if not _is_foreign(base.__module__) for part in vars(base).values()]
    slots = [getattr(one, name, None) for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
    return [*getattr(one, "__dict__", {}).values(), *slots, *filter(_is_watched, own)]


def _is_foreign(module: str | None) -> bool:
    return (module or "").partition(".")[0] in FOREIGN


def _is_watched(one: object) -> bool:
    """Return whether a global or class attribute may hold state: not a module or a class."""
    return not isinstance(one, type | type(sys) | property | staticmethod | classmethod)


def same_state(one: Sequence[object], other: Sequence[object]) -> bool:
    """Return whether two results of `python_state` are the same."""
    return len(one) == len(other) and all(
        a is b or (type(a) is type(b) and isinstance(a, PLAIN) and (a == b or (a != a and b != b)))
        for a, b in zip(one, other, strict=True)
    )


def _host_random(draw: torch.Generator) -> list[object]:
    """Return the states of the host's generators; without the one that the device draws from."""
    numpy_state: Any = np.random.get_state()
    states: list[object] = [repr(random.getstate()), numpy_state[1].tobytes(), numpy_state[2]]
    if draw is not torch.default_generator:
        states.append(torch.default_generator.get_state().numpy().tobytes())
    return states


def _why_not_static(
    python: list[object], python_after: list[object], host: list[object], host_after: list[object]
) -> str:
    """Return why the Python of a part must run each time; "" if it need not."""
    if not same_state(host, host_after):
        return "the model draws random numbers on the host"
    if not same_state(python, python_after):
        return "a forward pass changes what the model, or code that it calls, keeps in Python"
    return ""
