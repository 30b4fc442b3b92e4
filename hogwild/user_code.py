"""Import of user code: class_path -> object, and the folders to search. Nothing is registered: any importable class or
function works.

Errors say which part of a class path failed: the module does not exist, it raised during import, or it lacks the name.
This module does not import torch."""

import contextlib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from hogwild.errors import BuildError, ClassPathError, ConfigError, HogwildError, Problem, did_you_mean
from hogwild.version import PACKAGE

LONGEST_LINE = 300  # letters of an exception's first line
_job_folder: Path | None = None  # set by `user_path`
_data_folders: tuple[Path, ...] = ()  # set by `look_for_data_in`


class ComponentSpec(Protocol):
    """A section of the job file that names a class: `model`, `loss`, `data.train`, `optimizer`."""

    @property
    def class_path(self) -> str: ...

    @property
    def init_args(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Given:
    """A class or function that a caller gave, `target`, instead of its path, which names it in records and errors."""

    class_path: str
    target: Any
    init_args: Mapping[str, Any] = field(default_factory=dict)


def target_of(spec: ComponentSpec) -> Any:
    """Return the class or function itself. Raises ClassPathError."""
    return spec.target if isinstance(spec, Given) else resolve(spec.class_path)


def resolve(class_path: str) -> Any:
    """Return the class or function that `class_path` names. Raises ClassPathError with the cause."""
    parts = class_path.split(".")
    if not all(part.isidentifier() for part in parts):
        raise ClassPathError(
            f"{class_path!r}: must be a dotted path to a class or function, such as mymodel.Net",
            code="config/class-path",
        )
    found: Any = _import(class_path, parts[0])
    for depth in range(1, len(parts)):
        found = _step(class_path, found, parts[:depth], parts[depth])
    if isinstance(found, ModuleType) or not callable(found):
        raise ClassPathError(
            f"{class_path}: must name a class or a function, but it is a {type(found).__name__}",
            code="config/not-callable",
        )
    return found


def build(spec: ComponentSpec, *positional: Any, **extra: Any) -> Any:
    """Call the class or function of `spec` with its init_args, after `positional` and with `extra`, which we fill in.

    Raises ClassPathError for the path, ConfigError for arguments that do not fit the signature, BuildError for whatever
    the class itself raises; our own errors pass through unchanged."""
    target = target_of(spec)
    _check_arguments(spec, target, positional, extra)
    try:
        return target(*positional, **spec.init_args, **extra)
    except HogwildError:
        raise
    except (Exception, SystemExit) as error:
        given = ", ".join(f"{name}={value!r}" for name, value in spec.init_args.items())
        raise BuildError(
            f"{spec.class_path}({given}) raised {raised_text(error)}", code="config/constructor-raised"
        ) from error


def build_callable(spec: ComponentSpec) -> Any:
    """Return an object that is called with tensors later: a class is instantiated, a function gets its init_args by
    `partial`. For losses, both `torch.nn.CrossEntropyLoss` and `torch.nn.functional.cross_entropy` work."""
    target = target_of(spec)
    if inspect.isclass(target):
        return build(spec)
    if not spec.init_args:
        return target
    names = inspect.signature(target).parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in names.values())
    unknown = [name for name in spec.init_args if name not in names and not takes_any]
    if unknown:
        code = "config/unknown-argument"
        raise ConfigError([_problem(spec, name, _unknown(name, [*names]), code) for name in unknown])
    return partial(target, **spec.init_args)


def user_path(job_file: Path | None) -> list[str]:
    """Put the job file's folder, then the current one, first on sys.path, so that a user's mymodel.py is found. Return
    both folders."""
    global _job_folder
    _job_folder = Path(job_file).absolute().parent if job_file is not None else None
    folders = [str(_job_folder)] if _job_folder is not None else []
    folders = list(dict.fromkeys([*folders, str(Path.cwd())]))
    sys.path[:] = folders + [entry for entry in sys.path if entry not in folders]
    return folders


def data_folders() -> list[Path]:
    """Return the folders in which data files may lie: those that were set, the job file's, and the current one."""
    own = [_job_folder] if _job_folder is not None else []
    return list(dict.fromkeys([*_data_folders, *own, Path.cwd()]))


def given_data_folders() -> tuple[Path, ...]:
    """Return the folders that `look_for_data_in` has set."""
    return _data_folders


def look_for_data_in(*folders: str) -> tuple[Path, ...]:
    """Set where data files are found first; return where they were. That is the folder of the user's own job file, for
    a process that trains a copy of it and imports modules from the copy's folder; and where a run found them."""
    global _data_folders
    before, _data_folders = _data_folders, tuple(map(Path, folders))
    return before


def _import(class_path: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            raise ClassPathError(_no_module(class_path, name), code="config/no-such-module") from error
        raise ClassPathError(
            f"{class_path}: importing {name} raised {raised_text(error)}", code="config/import-failed"
        ) from error


def _step(class_path: str, found: Any, before: list[str], name: str) -> Any:
    """Return the attribute `name` of `found`, or its submodule."""
    try:
        return getattr(found, name)
    except AttributeError as error:
        whole = ".".join([*before, name])
        if hasattr(found, "__path__") and importlib.util.find_spec(whole) is not None:
            return _import(class_path, whole)
        names = [one for one in dir(found) if not one.startswith("_")] + list(getattr(found, "__all__", ()))
        if hasattr(found, "__path__"):
            names += [module.name for module in pkgutil.iter_modules(found.__path__)]
        file = getattr(found, "__file__", None)
        words = f"{class_path}: {'.'.join(before)} has no {name!r}{did_you_mean(name, names)}"
        raise ClassPathError(words + (f" (in {file})" if file else ""), code="config/no-such-name") from error
    except (Exception, SystemExit) as error:  # a package that loads names on first use
        raise ClassPathError(
            f"{class_path}: loading {name} raised {raised_text(error)}", code="config/import-failed"
        ) from error


def _no_module(class_path: str, name: str) -> str:
    """Return the message for a first part that cannot be imported: misspelt, not installed, or not on the path."""
    folders = [entry or "." for entry in sys.path[:2]]
    near = [module.name for module in pkgutil.iter_modules(folders)]
    close = did_you_mean(name, [*near, *sys.modules])
    if name in ("nn", "optim"):  # after `from torch import nn`
        close = f"; did you mean 'torch.{class_path}'?"
    return (
        f"{class_path}: there is no module {name!r}{close}; looked in {', '.join(folders)} and the installed packages"
    )


def _check_arguments(spec: ComponentSpec, target: Any, positional: tuple[Any, ...], extra: Mapping[str, Any]) -> None:
    """Raise one error for all arguments that we fill in ourselves, that are unknown or that are missing. Python's
    TypeError names one at a time, without the class."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return  # written in C without a signature; the call itself will fail
    parameters, given = list(signature.parameters.values()), len(positional)
    free = [one for one in parameters[given:] if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    names = [one.name for one in free if one.name not in extra]
    ours = {one.name for one in parameters[:given]} | set(extra)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
    misfits: list[tuple[str, str, str]] = []
    for name in spec.init_args:
        if name in ours:
            misfits.append((name, "is filled in by hogwild; remove it", "config/unknown-argument"))
        elif name not in names and not takes_any:
            misfits.append((name, _unknown(name, names), "config/unknown-argument"))
    required = [one.name for one in free if one.default is one.empty and one.name not in ours]
    missing = [name for name in required if name not in spec.init_args]
    misfits += [(name, "is required", "config/missing-argument") for name in missing]
    if misfits:
        shown = f"; signature: {signature.replace(return_annotation=inspect.Signature.empty)}"
        raise ConfigError([_problem(spec, name, message + shown, code) for name, message, code in misfits])


def _unknown(name: str, allowed: Sequence[str]) -> str:
    return f"unknown argument{did_you_mean(name, allowed)} (allowed: {', '.join(allowed)})"


def _problem(spec: ComponentSpec, name: str, message: str, code: str) -> Problem:
    return Problem(spec.class_path, 0, 0, f"init_args.{name}", message, code)


# ---- exceptions of user code


@cache
def _libraries() -> tuple[str, ...]:
    folders = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(f"{folder}{os.sep}" for folder in {*folders, str(PACKAGE)})


def is_users(file: str) -> bool:
    """Return whether a frame's file is neither Python's, nor an installed package's, nor ours."""
    is_librarys = file.startswith(("<", *_libraries())) or f"{os.sep}site-packages{os.sep}" in file
    return not is_librarys or file == "<stdin>"


def cell_of(file: str) -> str:
    """Return `Cell In[3]` for the file name that IPython gives to a cell's code; "" for any other."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    compiler = getattr(get_shell() if get_shell is not None else None, "compile", None)
    name_of = getattr(compiler, "format_code_name", None)  # other shells, and older ones, have none
    return " ".join((name_of(file) if name_of is not None else None) or ())


def short_place(place: str) -> str:
    """Return `FILE:LINE` with the file as an import finds it: relative to its entry of sys.path."""
    file, _, line = place.rpartition(":")
    found = ""
    for folder in sys.path:
        with contextlib.suppress(OSError, TypeError):  # the current folder is gone; no text
            whole = os.path.join(os.path.abspath(folder), "")
            found = max(found, whole if file.startswith(whole) else "", key=len)
    return f"{cell_of(file) or file.removeprefix(found)}:{line}"


def user_frame(error: BaseException, *, or_innermost: bool = True) -> str:
    """Return `file:line` of the innermost frame in the user's files, also of the exceptions that caused `error`; if
    there is none, of the innermost frame at all, or "". A syntax error is at its own line."""
    cause: BaseException | None = error
    innermost, seen = "", set[int]()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        frames = [(one.filename, one.lineno) for one in traceback.extract_tb(cause.__traceback__)]
        if isinstance(cause, SyntaxError) and cause.filename:
            frames.append((cause.filename, cause.lineno))
        if users := [f"{file}:{line}" for file, line in frames if is_users(file)]:
            return users[-1]
        innermost = innermost or (f"{frames[-1][0]}:{frames[-1][1]}" if frames else "")
        cause = cause.__cause__ or cause.__context__
    return innermost if or_innermost else ""


def raised_text(error: BaseException) -> str:
    """Return the exception as `ValueError: its message (file:line)`, with the user's line; more lines of the message
    follow, and all of it after a long first one. Our own errors name the place themselves."""
    words = error.msg if isinstance(error, SyntaxError) else str(error).strip()
    place = user_frame(error, or_innermost=not isinstance(error, HogwildError))
    first, *more = words.splitlines() or [""]
    if len(first) > LONGEST_LINE:
        first, more = f"{first[: LONGEST_LINE - 1]}…", words.splitlines()
    head = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return "\n".join([head + (f" ({short_place(place)})" if place else ""), *more]) + _not_copied(error)


def _not_copied(error: BaseException) -> str:
    """Return that the missing file is beside the user's job file, but was not copied with the job."""
    if isinstance(error, FileNotFoundError) and error.filename is not None and _data_folders and _job_folder:
        name = os.path.relpath(os.fsdecode(error.filename), _job_folder)
        if (users := _data_folders[0] / name).exists():
            return (
                f"\n{users} exists, but was not copied with the job, as .py files and others of at most 1 MiB are: "
                "open it by this path"
            )
    return ""
