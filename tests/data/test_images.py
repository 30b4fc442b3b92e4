"""Pictures in class folders, made here by Pillow: what comes out, and what cannot be read."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from PIL import Image

from hogwild.data import ImageFolder
from hogwild.data.locate import set_data_dir
from hogwild.errors import DataError, HogwildError, NotFoundError, UsageError

RED, GREEN = (255, 0, 0), (0, 255, 0)


def save(file: Path, colour: Any = RED, size: tuple[int, int] = (6, 4), mode: str = "RGB", **options: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(file, **options)
    return file


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two classes, three pictures; one in a folder inside its class."""
    save(tmp_path / "dog" / "b.png", GREEN)
    save(tmp_path / "cat" / "z.bmp", RED)
    save(tmp_path / "cat" / "more" / "a.PNG", (0, 0, 51))
    return tmp_path


def test_pictures_are_resized_and_numbered_by_the_sorted_folders(pictures: Path) -> None:
    dataset = ImageFolder(pictures, size=[3, 5])
    x, y = dataset.rows(0, 3)
    assert (dataset.classes, len(dataset)) == (("cat", "dog"), 3)
    assert (x.shape, x.dtype, y.dtype, y.tolist()) == ((3, 3, 3, 5), torch.float32, torch.int64, [0, 0, 1])
    for picture, colour in zip(x, ([0, 0, 0.2], [1, 0, 0], [0, 1, 0]), strict=True):
        assert torch.allclose(picture, torch.tensor(colour, dtype=torch.float32).view(3, 1, 1).expand(3, 3, 5))
    assert torch.equal(dataset[-1][0], x[2]) and dataset[1][1].shape == ()


def test_height_comes_before_width(tmp_path: Path) -> None:
    picture = Image.new("RGB", (20, 10), RED)
    picture.paste(GREEN, (0, 5, 20, 10))  # the lower half
    (tmp_path / "a").mkdir()
    picture.save(tmp_path / "a" / "p.png")
    x, _ = ImageFolder(tmp_path, size=(4, 2))[0]
    assert x.shape == (3, 4, 2) and x[1, 0].tolist() == [0, 0] and x[1, 3].tolist() == [1, 1]


def test_grey_is_one_channel_and_numbers_are_normalised(pictures: Path) -> None:
    x, _ = ImageFolder(pictures, size=2, channels=1, mean=[0.5], deviation=[0.25]).rows(1, 2)
    assert x.shape == (1, 1, 2, 2)  # luma of pure red: 76 of 255 (ITU-R 601)
    assert torch.allclose(x, torch.full((1, 1, 2, 2), (76 / 255 - 0.5) / 0.25))


ODD: dict[str, tuple[Any, dict[str, Any], float]] = {
    "16-bit grey": (np.full((4, 4), 32896, np.uint16), {}, 128 / 255),
    "one bit": (np.full((4, 4), True), {}, 1.0),
    "transparent": (np.full((4, 4, 4), (255, 255, 255, 0), np.uint8), {}, 1.0),
    "grey": (np.full((4, 4), 51, np.uint8), {}, 0.2),
}


@pytest.mark.parametrize("values", [np.full((4, 4), 0.2, np.float32), np.full((4, 4), 1 << 17, np.int32)])
def test_grey_values_of_an_unknown_scale_are_refused(tmp_path: Path, values: np.ndarray) -> None:
    """Pillow clips them to black or white."""
    (tmp_path / "a").mkdir()
    Image.fromarray(values).save(tmp_path / "a" / "p.tif")
    with pytest.raises(DataError, match=r"a/p\.tif: .*its grey values, from .*, are not of 8 or 16 bits") as error:
        ImageFolder(tmp_path, size=4).rows(0, 1)
    assert error.value.code == "data/broken-image"


def test_parts_are_no_classes(tmp_path: Path) -> None:
    for part in ("train", "Val"):
        save(tmp_path / part / "dog" / "1.png")
    with pytest.raises(DataError, match="folders Val, train are parts, not classes: choose one with split") as error:
        ImageFolder(tmp_path, size=4)
    assert error.value.code == "data/image-classes"
    assert ImageFolder(tmp_path, size=4, split="train").classes == ("dog",)
    assert ImageFolder(tmp_path, size=4, classes=["train", "Val"]).classes == ("train", "Val")


@pytest.mark.parametrize("kind", ODD)
def test_other_kinds_of_pictures_become_colours(tmp_path: Path, kind: str) -> None:
    values, options, expected = ODD[kind]
    (tmp_path / "a").mkdir()
    Image.fromarray(values).save(tmp_path / "a" / "p.png", **options)
    x, _ = ImageFolder(tmp_path, size=4)[0]
    assert torch.allclose(x, torch.full((3, 4, 4), expected))


def test_a_palette_with_transparency_and_a_moving_picture_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([255, 0, 0, 0, 255, 0])
    palette.save(tmp_path / "a" / "1.png", transparency=bytes([128, 255]))
    frames = [Image.new("RGB", (4, 4), colour) for colour in (GREEN, RED)]
    frames[0].save(tmp_path / "a" / "2.gif", save_all=True, append_images=frames[1:])
    x, _ = ImageFolder(tmp_path, size=1).rows(0, 2)
    assert x.reshape(2, 3).tolist() == [[1, 0, 0], [0, 1, 0]]


def test_a_photograph_is_turned_as_the_camera_says(tmp_path: Path) -> None:
    picture = Image.new("RGB", (64, 32), (255, 255, 255))
    picture.paste((0, 0, 0), (0, 0, 32, 32))  # the left half is black
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise: left is up
    (tmp_path / "a").mkdir()
    picture.save(tmp_path / "a" / "p.jpg", exif=exif, quality=95)
    x, _ = ImageFolder(tmp_path, size=(8, 4), channels=1)[0]
    assert x[0, 0].max() < 0.1 and x[0, -1].min() > 0.9


def test_a_part_is_a_folder_below(tmp_path: Path) -> None:
    save(tmp_path / "pets" / "train" / "cat" / "a.png")
    save(tmp_path / "pets" / "val" / "dog" / "a.png")
    set_data_dir(tmp_path)
    assert ImageFolder("pets", 2, split="train").classes == ("cat",)
    both = ["cat", "dog"]
    assert ImageFolder("pets", 2, split="val", classes=both)[0][1] == 1  # and not 0, as the only folder there
    with pytest.raises(DataError, match=r"pets/val/dog: is not one of the classes \(cat, dot\); did you mean 'dot'"):
        ImageFolder("pets", 2, split="val", classes=["cat", "dot"])
    with pytest.raises(NotFoundError, match=rf"part 'test'. Looked at:\n  {tmp_path}/pets/test: no such folder"):
        ImageFolder("pets", 2, split="test")


def test_what_is_not_read_is_said(pictures: Path, caplog: pytest.LogCaptureFixture) -> None:
    (pictures / "labels.csv").write_text("")
    (pictures / "cat" / "notes.txt").write_text("")
    (pictures / "cat" / ".DS_Store").write_text("")
    assert len(ImageFolder(pictures, 2)) == 3
    assert "1 file next to the class folders skipped: labels.csv" in caplog.text
    assert "1 file skipped (not a picture by extension): cat/notes.txt" in caplog.text
    assert "DS_Store" not in caplog.text


def broken(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    file = save(folder / "cat" / "p.png", size=(50, 50))
    file.write_bytes(damage(file.read_bytes()))


def empty_class(folder: Path) -> None:
    save(folder / "cat" / "p.png")
    (folder / "dog").mkdir()


VAST = b"\0\1\0\0" * 2  # claims 65,536 x 65,536
CRIMES: dict[str, tuple[Any, str]] = {
    "truncated": (
        lambda folder: broken(folder, lambda raw: raw[:60]),
        r"cat/p.png: cannot be read as a picture: .+; replace or remove it",
    ),
    "no picture": (
        lambda folder: broken(folder, lambda _: b"<html>"),
        r"cat/p.png: cannot be read as a picture: cannot identify image file",
    ),
    "a bomb": (
        lambda folder: broken(folder, lambda raw: raw[:16] + VAST + raw[24:]),
        r"cat/p.png: cannot be read as a picture: .+",
    ),
    "an empty class": (empty_class, r"dog: this class has no picture"),
    "no classes": (lambda folder: save(folder / "p.png"), r"it has no class folders \(it holds 1 file"),
    "nothing": (lambda folder: None, r"it has no class folders \(it is empty\)"),
}


@pytest.mark.parametrize("crime", CRIMES)
def test_what_cannot_be_read_is_named(tmp_path: Path, crime: str) -> None:
    commit, words = CRIMES[crime]
    commit(tmp_path)
    with pytest.raises(DataError, match=words) as caught:
        ImageFolder(tmp_path, 4).rows(0, 1)
    assert str(caught.value).startswith(str(tmp_path)) and caught.value.code.startswith("data/")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"size": 0}, r"size must be \[height, width\]"),
        ({"size": [3]}, r"size must be"),
        ({"size": "big"}, r"size must be"),
        ({"channels": 2}, r"channels must be 3 \(RGB\) or 1 \(grey\), got 2"),
        ({"mean": [0.5]}, r"mean must be a list of 3 numbers"),
        ({"deviation": [1, 0, 1]}, r"deviation must be a list of 3 positive numbers"),
        ({"classes": ["cat", "cat"]}, r"classes must be a list of different folder names"),
    ],
)
def test_arguments_that_make_no_sense_are_said(pictures: Path, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ImageFolder(pictures, **{"size": 4, **arguments})


def test_ranges_in_any_order_by_a_copy_of_the_object(pictures: Path) -> None:
    dataset = ImageFolder(pictures, 4)
    copy = cloudpickle.loads(cloudpickle.dumps(dataset))
    whole = dataset.rows(0, 3)
    for start, stop in ((2, 3), (0, 2), (1, 1)):
        for part, field in zip(copy.rows(start, stop), whole, strict=True):
            assert torch.equal(part, field[start:stop])
    with pytest.raises(IndexError):
        dataset.rows(0, 4)


def test_the_fingerprint_is_that_of_names_contents_and_arguments(pictures: Path) -> None:
    same = ImageFolder(pictures, 4).fingerprint()
    os.utime(pictures / "dog" / "b.png", (0, 0))
    assert ImageFolder(pictures, 4).fingerprint() == same
    prints = {same, ImageFolder(pictures, 5).fingerprint(), ImageFolder(pictures, 4, channels=1).fingerprint()}
    prints.add(ImageFolder(pictures, 4, mean=[0, 0, 0.5]).fingerprint())
    (pictures / "dog" / "b.png").rename(pictures / "dog" / "c.png")
    prints.add(ImageFolder(pictures, 4).fingerprint())
    save(pictures / "dog" / "c.png", RED)
    prints.add(ImageFolder(pictures, 4).fingerprint())
    assert len(prints) == 6


def test_without_pillow_the_error_names_the_extra(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIL", "PIL.Image"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(HogwildError, match=r"pip install 'hogwild\[images\]'"):
        ImageFolder(pictures, 4)
