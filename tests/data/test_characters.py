"""Recurrent networks over characters: the models, the data they read, and the text they write."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import hogwild
from hogwild.cli import main
from hogwild.data import Characters, Names, Speakers
from hogwild.data.locate import set_data_dir
from hogwild.errors import DataError, HogwildError, NotFoundError, UsageError
from hogwild.inference.trained_model import sample
from hogwild.models import CharRnn, SequenceClassifier
from hogwild.models.char_rnn import CELLS, CustomLstm
from tests.shared_model import one_thread  # noqa: F401 (a fixture for every test here)

PLAY = """\
KATE:
They call me Katharine that do talk of me.

PETER:
You lie, in faith; for you are call'd plain Kate,
And bonny Kate and sometimes Kate the curst;

KATE:
Asses are made to bear, and so are you.
"""


# ---- models --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["one way", "both ways"])
def pair(request: pytest.FixtureRequest) -> tuple[nn.LSTM, CustomLstm]:
    torch.manual_seed(1)
    lstm = nn.LSTM(5, 7, num_layers=2, batch_first=True, bidirectional=request.param)
    return lstm, CustomLstm.like(lstm)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [None, [4, 11, 1]], ids=["equal lengths", "different lengths"])
def test_the_custom_lstm_is_torchs_given_the_same_weights(
    pair: tuple[nn.LSTM, CustomLstm], lengths: list[int] | None
) -> None:
    lstm, custom = pair
    count = len(custom.layers)
    x, state = torch.randn(3, 11, 5), (torch.randn(count, 3, 7), torch.randn(count, 3, 7))
    for given in (None, state):
        if lengths is None:
            wanted, last = lstm(x, given)
            found, ours = custom(x, given)
        else:
            packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
            wanted, last = lstm(packed, given)
            wanted, _ = pad_packed_sequence(wanted, batch_first=True)
            found, ours = custom(x, given, torch.tensor(lengths))
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(ours, last, atol=1e-5, rtol=1e-5)
    wanted.square().sum().backward()
    found.square().sum().backward()
    of_torch = dict(lstm.named_parameters())
    for place, layer in enumerate(custom.layers):
        k, backward = divmod(place, custom.directions)
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(
                parameter.grad, of_torch[f"{name}_l{k}{'_reverse' if backward else ''}"].grad, atol=1e-4, rtol=1e-4
            )


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_the_custom_lstm_can_be_scripted(bidirectional: bool, layer_norm: bool) -> None:
    custom = CustomLstm(5, 7, 2, bidirectional=bidirectional, layer_norm=layer_norm)
    x, lengths = torch.randn(3, 4, 5), torch.tensor([2, 4, 1])
    scripted = torch.jit.script(custom)
    output, state = scripted(x)
    torch.testing.assert_close(output, custom(x)[0])
    torch.testing.assert_close(scripted(x, state, lengths), custom(x, state, lengths))


def test_a_layer_norm_step_normalises_both_parts_and_the_cell() -> None:
    torch.manual_seed(1)
    custom, x = CustomLstm(3, 4, layer_norm=True), torch.randn(2, 6, 3)
    layer = custom.layers[0]
    for norm in (layer.norm_ih, layer.norm_hh, layer.norm_c):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)

    def normalised(values: torch.Tensor, norm: nn.LayerNorm) -> torch.Tensor:
        deviation = values.var(1, unbiased=False, keepdim=True).add(norm.eps).sqrt()
        return (values - values.mean(1, keepdim=True)) / deviation * norm.weight + norm.bias

    h, c = torch.zeros(2, 4), torch.zeros(2, 4)
    for step in range(6):
        gates = normalised(x[:, step] @ layer.weight_ih.T, layer.norm_ih)
        i, f, g, o = (gates + normalised(h @ layer.weight_hh.T, layer.norm_hh)).chunk(4, 1)
        c = normalised(f.sigmoid() * c + i.sigmoid() * g.tanh(), layer.norm_c)
        h = o.sigmoid() * c.tanh()
    output, state = custom(x)
    torch.testing.assert_close((output[:, -1], state), (h, (h[None], c[None])))


@pytest.mark.parametrize("options", [{"proj_size": 3}, {"bias": False}, {"batch_first": False}], ids=str)
def test_an_lstm_of_another_kind_has_no_like(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="only an LSTM with biases, batch_first and no projection"):
        CustomLstm.like(nn.LSTM(5, 7, **{"batch_first": True, **options}))


@pytest.mark.parametrize("cell", CELLS)
def test_two_windows_with_the_state_between_are_one_long_window(cell: str) -> None:
    torch.manual_seed(1)
    model, x = CharRnn(9, 4, 6, layers=2, cell=cell), torch.randint(9, (3, 10))
    whole, _ = model(x)
    assert whole.shape == (3, 9, 10)
    first, state = model(x[:, :4])
    second, _ = model(x[:, 4:], state)
    torch.testing.assert_close(torch.cat([first, second], 2), whole)


@pytest.mark.parametrize("pool", ["last", "mean"])
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_what_pads_a_sequence_is_not_read(bidirectional: bool, cell: str, pool: str) -> None:
    torch.manual_seed(1)
    model = SequenceClassifier(9, 3, 4, 5, layers=2, cell=cell, pool=pool, bidirectional=bidirectional)
    x, lengths = torch.randint(9, (4, 8)), torch.tensor([3, 8, 1, 5])
    logits = model(x, lengths)
    assert logits.shape == (4, 3)
    for row, length in enumerate(lengths.tolist()):
        alone = model(x[row : row + 1, :length], torch.tensor([length]))
        torch.testing.assert_close(logits[row : row + 1], alone)


def test_a_cell_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="cell must be lstm, gru, custom or layer_norm, got 'rnn'"):
        CharRnn(5, cell="rnn")
    with pytest.raises(ValueError, match="pool must be last or mean, got 'max'"):
        SequenceClassifier(5, 2, pool="max")


# ---- data ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "input.txt").write_text(PLAY)
    for name, lines in {"Dutch": "Aalst\nAart\nAart\nAdam\n", "Irish": "Adán\n\nAhern\n"}.items():
        (tmp_path / "names").mkdir(exist_ok=True)
        (tmp_path / "names" / f"{name}.txt").write_text(lines)
    return tmp_path


def spelt(data: Any, numbers: torch.Tensor) -> str:
    return "".join(data.vocabularies["symbols"][number] for number in numbers.reshape(-1).tolist())


def test_windows_follow_each_other_and_targets_are_the_characters_that_follow(folder: Path) -> None:
    train, val = (Characters(steps=8, split=split, fraction=0.2, root=folder) for split in ("train", "val"))
    x, y = train.tensors
    border = len(PLAY) - round(0.2 * len(PLAY))
    assert spelt(train, x) == PLAY[: x.numel()] and spelt(train, y) == PLAY[1 : y.numel() + 1]
    assert len(train) == (border - 1) // 8
    assert spelt(val, val.tensors[0]) == PLAY[border : border + val.tensors[0].numel()]
    assert train.vocabularies == val.vocabularies == {"symbols": sorted({*PLAY})}


def test_a_text_is_read_as_it_is_written_and_what_is_none_is_refused(folder: Path) -> None:
    (folder / "own.txt").write_text("äß€\n𝄞" * 20, encoding="utf-8")
    assert Characters(steps=2, path="own.txt", root=folder).vocabularies["symbols"] == sorted("äß€\n𝄞")
    (folder / "latin.txt").write_bytes("gut\nnä\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin.txt: line 2: b'\\xe4' is not utf-8 text"):
        Characters(path="latin.txt", root=folder)
    with pytest.raises(DataError, match="split val has 20 characters, too few for a window of 64"):
        Characters(split="val", root=folder)
    with pytest.raises(NotFoundError, match=r"no folder holds none\.txt"):
        Characters(path="none.txt", root=folder)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"steps": 0}, "steps must be"), ({"fraction": 1.0}, "fraction must be"), ({"split": "test"}, "split must be")],
    ids=["steps", "fraction", "split"],
)
def test_arguments_of_characters_are_checked(folder: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Characters(root=folder, **options)


def test_speakers_are_those_with_most_lines_and_every_tenth_speech_is_held_back(folder: Path) -> None:
    (folder / "long.txt").write_text((PLAY + "\n") * 10)  # 30 speeches
    train, val = (Speakers(split, classes=2, path="long.txt", root=folder) for split in ("train", "val"))
    assert train.vocabularies["classes"] == ["KATE", "PETER"]
    assert len(train) + len(val) == 40 and val.labels == [0, 1, 1, 0]  # speeches 10, 20 and 30
    numbers, label = val[0]
    assert spelt(val, numbers) == "They call me Katharine that do talk of me." and label == 0
    assert numbers.dtype == torch.int64 and train.longest == 49
    assert len(Speakers(classes=1, longest=40, path="long.txt", root=folder)) == 9, "longer lines are left out"


def test_a_text_without_speeches_has_no_speakers(folder: Path) -> None:
    (folder / "prose.txt").write_text("Once upon a time\nthere was a king.\n")
    with pytest.raises(DataError, match="split train has no speech"):
        Speakers(path="prose.txt", root=folder)


def test_names_are_read_from_a_file_per_class(folder: Path) -> None:
    train, val = (Names(split=split, fraction=0.34, root=folder) for split in ("train", "val"))
    assert train.vocabularies["classes"] == ["Dutch", "Irish"] and "á" in train.vocabularies["symbols"]
    assert [(spelt(train, x), y) for x, y in map(train.__getitem__, range(len(train)))] == [
        ("Aalst", 0), ("Aart", 0), ("Adán", 1), ("Ahern", 1)
    ]  # fmt: skip
    assert [spelt(val, val[k][0]) for k in range(len(val))] == ["Adam"], "Aart counts once"


def test_folders_that_are_none_of_names_are_refused(folder: Path) -> None:
    (folder / "one").mkdir()
    (folder / "one" / "Dutch.txt").write_text("Aart\n")
    with pytest.raises(DataError, match=r"needs two .txt files \(classes\) or more, has 1"):
        Names("one", root=folder)
    with pytest.raises(NotFoundError, match="there is no such folder"):
        Names("none", root=folder)
    with pytest.raises(DataError, match="split val has no name"):
        Names(split="val", fraction=0.01, root=folder)


# ---- text that is written ------------------------------------------------------------------------------------------


class Alphabet(nn.Module):
    """After a letter comes the next one, nearly always; counts in its state how many it has read."""

    def forward(self, x: torch.Tensor, state: int = 0) -> tuple[torch.Tensor, int]:
        assert x.shape[1] == 1 or state == 0
        following = nn.functional.one_hot((x + 1) % 5, 5).float()
        return 4 * following.transpose(1, 2), state + x.shape[1]


def test_what_is_likeliest_comes_next_at_temperature_zero() -> None:
    assert sample(Alphabet(), "abcde", "de", 7, temperature=0.0) == "abcdeab"
    assert sample(Alphabet(), "abcde", "", 3, temperature=1e-300) == "bcd", "without a prompt from the first symbol"


@pytest.mark.slow
def test_the_temperature_says_how_often_something_else_comes() -> None:
    def share(temperature: float) -> float:
        text = "a" + sample(Alphabet(), "abcde", "a", 2000, temperature)
        return sum((ord(b) - ord(a)) % 5 == 1 for a, b in pairwise(text)) / 2000

    for temperature in (0.7, 1.0, 3.0):
        wanted = float(torch.softmax(torch.tensor([4.0, 0, 0, 0, 0]) / temperature, 0)[0])
        assert abs(share(temperature) - wanted) < 0.04


def test_the_same_seed_writes_the_same_text() -> None:
    texts = [sample(Alphabet(), "abcde", "a", 50, 5.0, seed=seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a model that has learnt a little."""
    folder = tmp_path_factory.mktemp("characters")
    (folder / "input.txt").write_text(PLAY * 4)
    made = {"steps": 8, "root": str(folder)}
    job = {
        "model": {"class_path": "hogwild.models.CharRnn", "init_args": {"embedding": 4, "hidden": 8}},
        "data": {
            "train": {"class_path": "hogwild.data.Characters", "init_args": made},
            "val": {"class_path": "hogwild.data.Characters", "init_args": {**made, "split": "val"}},
            "lanes": 2,
            "batch_size": 4,
        },
        "train": {"procs": 0},
        "evaluate": {"metrics": ["perplexity"]},
        "log": {"tensorboard": False},
    }
    assert len({*PLAY}) == 33
    (folder / "job.yaml").write_text(json.dumps(job))
    assert main.run(["train", str(folder / "job.yaml"), "--run-dir", str(folder / "run")]) == 0
    set_data_dir(None)
    return folder / "run"


Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def run(*argv: object) -> tuple[int, str, str]:
        status = main.run([str(one) for one in argv])
        told = capsys.readouterr()
        return status, told.out, told.err

    return run


@pytest.mark.slow
def test_a_run_knows_its_characters_and_writes_text(run: Path, say: Say) -> None:
    assert json.loads((run / "names.json").read_text())["names"]["symbols"] == sorted({*PLAY})
    status, text, _ = say("sample", run, "--prompt", "KATE:", "--length", 30)
    assert status == 0 and text.startswith("KATE:") and len(text) == 5 + 30 + 1
    status, answer, _ = say("sample", run, "--prompt", "KATE:", "--length", 30, "--json")
    assert "KATE:" + json.loads(answer)["text"] + "\n" == text
    assert hogwild.load(run).sample("KATE:", 30) == text[5:-1]
    assert say("sample", run, "--length", 9, "--temperature", 0)[0] == 0


def test_predictions_are_the_outputs_alone(run: Path) -> None:
    assert hogwild.load(run).predict(Characters(steps=8, root=run.parent)).shape[1:] == (33, 8)


def test_a_prompt_with_an_unknown_character_is_refused(run: Path, say: Say) -> None:
    status, _, error = say("sample", run, "--prompt", "Käte")
    assert status == 2 and "the model does not know 'ä'; its training text has 33 characters" in error
    assert say("sample", run, "--temperature", "-1")[0] == 2
    assert say("sample", run, "--temperature", "nan")[0] == 2


def test_a_model_that_predicts_no_characters_writes_no_text(run: Path) -> None:
    model = hogwild.load(run)
    model.names.pop("symbols")
    with pytest.raises(UsageError, match="its model predicts no characters") as found:
        model.sample()
    assert found.value.code == "usage/no-symbols"
    with pytest.raises(HogwildError, match="Linear is not recurrent"):
        sample(nn.Linear(1, 1), "ab", "a", 3)


def test_with_lines_a_text_is_every_run_of_so_many_of_a_speech(folder: Path) -> None:
    speeches = ["ALICE:\none\ntwo\nthree\nfour", "BOB:\nshort", *["ALICE:\nx"] * 8]
    (folder / "runs.txt").write_text("\n\n".join(speeches))
    data = Speakers(classes=2, path="runs.txt", root=folder, lines=3, longest=11)
    symbols = data.vocabularies["symbols"]
    texts = ["".join(symbols[code] for code in data[k][0].tolist()) for k in range(3)]
    assert texts == ["one\ntwo\nthr", "two\nthree\nf", "short"], "of a shorter speech all of it"
    with pytest.raises(DataError, match="lines must be >= 1, got 0"):
        Speakers(classes=2, path="runs.txt", root=folder, lines=0)
