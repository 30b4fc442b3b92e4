"""A user without a home folder: HOME is not set, and passwd does not know the number, as in many containers."""

import pwd

import pytest
import torch

from hogwild.data.locate import find_file
from hogwild.errors import NotFoundError, RunError
from hogwild.job.initial_values import load_initial
from hogwild.service.folders import StateFolder, state_folder
from hogwild.storage.artifact_cache import Kept, cache_root


@pytest.fixture(autouse=True)
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "HOGWILD_STATE"):
        monkeypatch.delenv(name, raising=False)

    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_code_is_compiled_and_not_kept() -> None:
    kept, compiled = Kept(cache_root() / "kernels-1"), []
    assert not kept.is_whole()
    assert "compiled kernels are not kept" in kept.filled(lambda folder: None, lambda: compiled.append(1))
    assert compiled == [1]


def test_a_path_in_the_home_folder_is_not_found_under_the_name_that_was_given() -> None:
    with pytest.raises(NotFoundError, match=r"no folder holds ~/rows\.csv"):
        find_file("Csv(path='~/rows.csv')", "~/rows.csv", None, "Your own file.")
    with pytest.raises(NotFoundError, match=r"there is no ~/model\.safetensors"):
        load_initial(torch.nn.Linear(1, 1), "~/model.safetensors")


def test_the_service_says_which_folder_it_cannot_make() -> None:
    with pytest.raises(RunError, match="cannot make the state folder /dev/null/"):
        StateFolder(state_folder(None)).make()
