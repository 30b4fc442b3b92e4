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

import pytest

from hogwild import by_value
from hogwild.user_code import is_users, raised_text, short_place

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


def test_a_class_of_a_notebook_is_at_its_cell_and_has_its_source_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker does not have the cells: no file, and no name of a cell."""
    file = "/tmp/ipykernel_1/2345.py"
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
