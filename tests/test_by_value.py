"""Facts of pickles that carry code: names and lines of files for the traceback in another process."""

import inspect
import linecache
import pickle
import subprocess
import sys
import traceback
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hogwild import by_value
from hogwild.user_code import is_users, raised_text, short_place
from hogwild.workers.child.loader import read_recipe, recipe_of

SOURCE = """
def make():
    class Net:
        def forward(self):
            raise RuntimeError("my own mistake")

    return Net
"""
LINE = 5


def class_of(file: str) -> Any:
    """Return the class of a script that has this file name: not importable, so it travels by value."""
    there: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(SOURCE, file, "exec"), there)
    return there["make"]()


def trace_of(kind: Any) -> tuple[str, str]:
    """Return the exception of `forward` in one line, and its traceback."""
    try:
        kind().forward()
    except RuntimeError as error:
        return raised_text(error), traceback.format_exc()
    raise AssertionError("nothing was raised")


def test_a_class_of_a_script_keeps_its_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "script.py"
    file.write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    kind = class_of(str(file))
    loaded = pickle.loads(by_value.dumps(kind()))
    words, trace = trace_of(type(loaded))
    assert words == f"RuntimeError: my own mistake (script.py:{LINE})"
    assert f'File "{file}", line {LINE}, in forward\n    raise RuntimeError' in trace


def test_a_class_of_a_notebook_is_at_its_cell_and_has_its_source_in_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker does not have the cells: no file, and no name of a cell."""
    file = str(tmp_path / "ipykernel_1" / "2345.py")
    cells = SimpleNamespace(format_code_name=lambda name: ("Cell", "In[3]") if name == file else None)
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(compile=cells))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(linecache.cache, file, (len(SOURCE), None, SOURCE.splitlines(keepends=True), file))
    kind = class_of(file)
    assert trace_of(kind)[0] == f"RuntimeError: my own mistake (Cell In[3]:{LINE})", "in this process, without workers"
    written = by_value.dumps(kind)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    assert trace_of(kind)[0].endswith(f"({file}:{LINE})"), "a shell that names no cells"
    monkeypatch.delitem(sys.modules, "IPython")
    monkeypatch.delitem(linecache.cache, file)
    words, trace = trace_of(loaded := pickle.loads(written))
    assert words == f"RuntimeError: my own mistake (Cell In[3]:{LINE})"
    assert f'File "Cell In[3]", line {LINE}, in forward\n    raise RuntimeError' in trace
    assert inspect.getsource(loaded.forward).lstrip().startswith("def forward(self):")


def test_a_place_is_relative_to_the_folder_of_an_import_and_code_of_a_pipe_is_the_users() -> None:
    assert short_place(f"{inspect.__file__}:7") == "inspect.py:7"
    assert short_place("/nowhere/else.py:7") == "/nowhere/else.py:7"
    assert short_place("<stdin>:7") == "<stdin>:7" and is_users("<stdin>") and not is_users("<string>")


@pytest.mark.processes
def test_an_exception_in_the_model_of_a_script_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(
        """
import torch, hogwild

class Net(torch.nn.Linear):
    updates = 0
    def forward(self, x):
        Net.updates += 1
        if Net.updates > 9:
            raise RuntimeError("my own mistake")
        return super().forward(x)

if __name__ == "__main__":
    net, data = Net(4, 2), torch.utils.data.TensorDataset(torch.ones(2000, 4), torch.ones(2000, dtype=torch.long))
    try:
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        hogwild.train(net, data, torch.nn.CrossEntropyLoss(), optimizer, batch_size=4, procs=1)
    except hogwild.HogwildError as error:
        print(error.code, str(error))
"""
    )
    said = subprocess.run([sys.executable, file], capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    assert said.startswith("train/user-code RuntimeError: my own mistake (script.py:9)\n"), said
    assert f'File "{file}", line 9, in forward\n    raise RuntimeError' in said


def test_functions_keep_defaults_and_closures() -> None:
    def outer(by: int) -> Any:
        return lambda x, more=2: (x + more) * by

    code = outer(3)
    here = FunctionType(code.__code__, {"__name__": "__main__"}, "f", code.__defaults__, code.__closure__)
    here.__module__ = "__main__"
    assert pickle.loads(by_value.dumps(here))(1) == 9


# ---- tensors


def in_memory(thing: Any) -> Any:
    return pickle.loads(by_value.dumps(thing))


def in_shared_memory(thing: Any) -> Any:
    return read_recipe(recipe_of(*by_value.dumps_apart(thing)))


WAYS = pytest.mark.parametrize("way", [in_memory, in_shared_memory])
TENSORS = {
    "float32": torch.arange(6.0).reshape(2, 3),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "bool": torch.tensor([True, False]),
    "complex": torch.ones(2, dtype=torch.complex64).conj(),
    "transposed": torch.arange(6).reshape(2, 3).T,
    "part": torch.arange(100)[10:20:3],
    "single": torch.tensor(7),
    "empty": torch.empty(0, 3),
    "expanded": torch.ones(1).expand(4),
    "learnt": torch.ones(2, requires_grad=True),
    "parameter": nn.Parameter(torch.ones(2)),
    "sparse": torch.eye(2).to_sparse(),
    "meta": torch.empty(3, device="meta"),
}


@WAYS
@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_travels_as_it_is(name: str, way: Any) -> None:
    tensor = TENSORS[name]
    (found,) = way([tensor])
    assert type(found) is type(tensor) and found.dtype == tensor.dtype and found.requires_grad == tensor.requires_grad
    assert found.device == tensor.device and found.shape == tensor.shape
    assert tensor.is_sparse or found.stride() == tensor.stride()
    assert tensor.is_meta or torch.equal(found.to_dense(), tensor.to_dense())


@WAYS
def test_views_of_one_tensor_travel_once_and_stay_views(way: Any) -> None:
    whole = torch.zeros(1000, 100)
    content, buffers = by_value.dumps_apart(list(whole))
    assert len(buffers) == 1 and len(content) < 200_000 < len(by_value.dumps(list(whole))) < 700_000
    rows = way([*whole, whole.numpy()])
    rows[3][:] = 1.0
    assert rows[3].untyped_storage().data_ptr() == rows[0].untyped_storage().data_ptr()
    assert not whole.any()


def test_a_loader_changes_only_its_own_copy() -> None:
    region = recipe_of(*by_value.dumps_apart({"tensor": torch.zeros(5), "array": np.zeros(5)}))
    first = read_recipe(region)
    first["tensor"] += 1.0
    first["array"] += 1.0
    second = read_recipe(region)
    assert not second["tensor"].any() and not second["array"].any()
