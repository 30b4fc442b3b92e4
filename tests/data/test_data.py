"""Data sets from hand-made files, good and bad, and from the real ones where HOGWILD_DATA is set."""

import gzip
import os
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hogwild.data
from hogwild.data import Digits, FashionMnist, Mnist, Npz, locate
from hogwild.errors import DataError, NotFoundError, UsageError

RNG = np.random.default_rng(1)
IMAGES = RNG.integers(0, 256, (5, 28, 28), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5], dtype=np.uint8)
IMAGE_FILE, LABEL_FILE = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder is named, whatever the environment of the test run says."""
    monkeypatch.delenv("HOGWILD_DATA", raising=False)


def idx(values: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.tobytes()


def write_mnist(folder: Path, images: np.ndarray = IMAGES, labels: np.ndarray = LABELS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / IMAGE_FILE).write_bytes(idx(images))
    (folder / LABEL_FILE).write_bytes(idx(labels))
    return folder


# --- digits


def test_digits_are_all_there_and_scaled() -> None:
    x, y = Digits("all").tensors
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((1797, 64), torch.float32, (1797,), torch.int64)
    assert (float(x.min()), float(x.max())) == (0.0, 1.0)
    # The class counts that UCI's own description of optdigits.tes gives.
    assert y.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (x * 16 == (x * 16).round()).all()


def test_the_two_parts_of_digits_are_the_whole_and_share_nothing() -> None:
    whole, train, test = Digits("all"), Digits("train"), Digits("test")
    assert (len(train), len(test)) == (1437, 360)
    rows = [{row.tobytes() for row in part.tensors[0].numpy()} for part in (whole, train, test)]
    assert rows[1] | rows[2] == rows[0] and not rows[1] & rows[2]


def test_digits_are_stratified() -> None:
    whole, test = (Digits(split).tensors[1].bincount() for split in ("all", "test"))
    assert (test - whole / 5).abs().max() < 1


def test_the_attribution_of_digits_lies_beside_them() -> None:
    text = Path(hogwild.data.__file__).with_name("digits.txt").read_text()
    assert "CC BY 4.0" in text and "Alpaydin" in text


def test_an_unknown_split_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"train, test, all.*'val'"):
        Digits("val")
    with pytest.raises(UsageError, match=r"train, test.*'all'"):
        Mnist("all", root=tmp_path)


def test_a_dataset_can_be_indexed_and_pickled() -> None:
    digits = pickle.loads(pickle.dumps(Digits("test")))
    x, y = digits[7]
    assert torch.equal(x, digits.tensors[0][7]) and int(y) == int(digits.tensors[1][7])
    assert len(digits) == 360


def test_every_data_set_of_the_catalogue_can_be_loaded() -> None:
    bases = ["Packed", "Rollout", "key_of", "pause", "sparse_rows"]  # for data of one's own
    assert sorted([*hogwild.data.CATALOG, "CATALOG", *bases]) == sorted(hogwild.data.__all__)
    for name in hogwild.data.CATALOG:
        loaded = getattr(hogwild.data, name)
        assert issubclass(loaded, torch.utils.data.Dataset) or callable(loaded.pack), name


# --- IDX: good files


def test_mnist_pixels_are_normalised_as_everybody_does(tmp_path: Path) -> None:
    x, y = Mnist(root=write_mnist(tmp_path)).tensors
    assert (x.shape, x.dtype, y.dtype) == ((5, 1, 28, 28), torch.float32, torch.int64)
    expected = (torch.from_numpy(IMAGES).double() / 255 - 0.1307) / 0.3081
    torch.testing.assert_close(x[:, 0].double(), expected, rtol=0, atol=1e-6)
    assert y.tolist() == LABELS.tolist()


def test_mnist_without_normalize_is_between_zero_and_one(tmp_path: Path) -> None:
    x, _ = Mnist(root=write_mnist(tmp_path), normalize=False).tensors
    torch.testing.assert_close(x[:, 0], torch.from_numpy(IMAGES).float() / 255, rtol=0, atol=1e-6)


def test_fashion_mnist_has_its_own_mean_and_folder(tmp_path: Path) -> None:
    write_mnist(tmp_path / "fashion_mnist")
    write_mnist(tmp_path / "mnist", 255 - IMAGES)
    locate.set_data_dir(tmp_path)
    x, _ = FashionMnist().tensors
    expected = (torch.from_numpy(IMAGES).double() / 255 - 0.2860) / 0.3530
    torch.testing.assert_close(x[:, 0].double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("spelling", ["t10k-{}-idx{}-ubyte", "t10k-{}.idx{}-ubyte"])
def test_files_may_be_zipped_and_spelt_either_way(tmp_path: Path, spelling: str, suffix: str) -> None:
    for kind, values in (("images", IMAGES), ("labels", LABELS)):
        content = idx(values)
        path = tmp_path / (spelling.format(kind, values.ndim) + suffix)
        path.write_bytes(gzip.compress(content) if suffix else content)
    assert len(Mnist("test", root=tmp_path)) == 5


# --- IDX: bad files. What is done to the image file, and what the error must say besides the file's name.


DAMAGE = {
    "truncated": (lambda raw: raw[:-10], r"truncated.*5 x 28 x 28 = 3,920 bytes.*after byte 16.*holds 3,910"),
    "too long": (lambda raw: raw + b"!", r"bytes after its end.*3,920.*holds 3,921"),
    "cut in the header": (lambda raw: raw[:9], r"truncated: the header is 16 bytes long, the file holds 9"),
    "empty": (lambda raw: b"", r"wrong magic number at byte 0: found b''"),
    "labels": (lambda raw: idx(LABELS), r"wrong magic number.*labels \(1 dimension\) where images"),
    "floats": (lambda raw: b"\0\0\x0d\x03" + raw[4:], r"wrong magic number at byte 0: found b'\\x00\\x00\\r\\x03'"),
    "gzip damaged": (lambda raw: flip(gzip.compress(raw)), r"damaged or truncated gzip file: CRC"),
    "no items": (lambda raw: idx(IMAGES[:0]), r"contains no items: .*0 x 28 x 28"),
    "a size beyond memory": (lambda raw: raw[:4] + b"\xff" * 12, r"truncated: the header promises 4,294,967,295 x"),
    "other size": (lambda raw: idx(IMAGES[:, :27]), r"must be 28 x 28, its header says \(27, 28\)"),
    "other count": (lambda raw: idx(IMAGES[:4]), r"holds 4 images, .*labels-idx1-ubyte holds 5 labels"),
}


def flip(raw: bytes) -> bytes:
    """Its checksum, the fourth word from the end, no longer fits."""
    return raw[:-8] + bytes([raw[-8] ^ 1]) + raw[-7:]


@pytest.mark.parametrize("crime", DAMAGE)
def test_a_damaged_image_file_is_an_error_that_says_where(tmp_path: Path, crime: str) -> None:
    write_mnist(tmp_path)
    damage, message = DAMAGE[crime]
    (tmp_path / IMAGE_FILE).write_bytes(damage(idx(IMAGES)))
    with pytest.raises(DataError, match=message) as caught:
        Mnist(root=tmp_path)
    assert str(tmp_path / IMAGE_FILE) in str(caught.value)


def test_a_label_above_nine_is_an_error_naming_the_sample(tmp_path: Path) -> None:
    write_mnist(tmp_path, labels=np.array([1, 2, 10, 0, 0], dtype=np.uint8))
    with pytest.raises(DataError, match=r"labels-idx1-ubyte: label 10 of sample 2 is out of range"):
        Mnist(root=tmp_path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (write_mnist(tmp_path) / IMAGE_FILE).unlink()
    (tmp_path / IMAGE_FILE).symlink_to("/proc/self/mem")  # address 0 cannot be read, not even by root
    with pytest.raises(DataError, match=rf"{IMAGE_FILE}: cannot be read: Input/output error"):
        Mnist(root=tmp_path)


# --- where files are looked for


def test_folders_are_looked_in_in_the_documented_order(tmp_path: Path) -> None:
    locate.set_data_dir(tmp_path)
    assert locate.folders(tmp_path / "mine", "mnist") == [tmp_path / "mine", tmp_path / "mnist", tmp_path]


def test_each_folder_comes_before_the_next(tmp_path: Path) -> None:
    locate.set_data_dir(tmp_path)
    for count, folder in ((1, tmp_path), (2, tmp_path / "mnist"), (3, tmp_path / "mine")):
        write_mnist(folder, IMAGES[:count], LABELS[:count])
        assert len(Mnist(root=folder if count == 3 else None)) == count


def test_the_chosen_folder_comes_before_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locate.data_dir() is None
    monkeypatch.setenv("HOGWILD_DATA", str(tmp_path / "variable"))
    assert locate.data_dir() == tmp_path / "variable"
    locate.set_data_dir(tmp_path / "chosen")
    assert locate.data_dir() == tmp_path / "chosen"


def test_a_relative_folder_stays_where_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    locate.set_data_dir("here")
    monkeypatch.chdir("/")
    assert locate.data_dir() == tmp_path / "here"


def test_an_empty_variable_names_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOGWILD_DATA", "")
    assert locate.data_dir() is None


def test_images_and_labels_never_come_from_two_folders(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mine", IMAGES[:1], LABELS[:1])
    (tmp_path / "mine" / LABEL_FILE).unlink()
    locate.set_data_dir(write_mnist(tmp_path))
    assert len(Mnist(root=tmp_path / "mine")) == 5


def test_missing_files_are_named_with_every_folder_and_where_to_get_them(tmp_path: Path) -> None:
    mine = write_mnist(tmp_path / "mine")
    (mine / LABEL_FILE).unlink()
    locate.set_data_dir(tmp_path)
    with pytest.raises(NotFoundError) as caught:
        Mnist(root=mine)
    message = str(caught.value)
    assert caught.value.exit_status == 3
    assert message.startswith(f"Mnist(split='train'): no folder holds {IMAGE_FILE} and {LABEL_FILE}")
    assert f"{mine}: does not hold {LABEL_FILE}\n" in message
    assert f"{tmp_path / 'mnist'}: no such folder\n" in message
    assert f"{tmp_path}: does not hold {IMAGE_FILE}, {LABEL_FILE}\n" in message
    assert "LeCun" in message and "--data-dir" in message and "HOGWILD_DATA" in message


def test_where_no_folder_was_named_the_error_says_so() -> None:
    with pytest.raises(NotFoundError, match=r"nowhere: no data folder is set\nFashion-MNIST is published by"):
        FashionMnist("test")


# --- the real files


def test_the_real_mnist_has_its_known_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    if not REAL_DATA:
        pytest.skip("HOGWILD_DATA is not set: no real data to read")
    monkeypatch.setenv("HOGWILD_DATA", REAL_DATA)
    x, y = Mnist("train").tensors
    assert y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert abs(float(x.mean())) < 1e-3 and abs(float(x.std()) - 1) < 1e-3
    assert y[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    test = Mnist("test").tensors
    assert test[0].shape == (10_000, 1, 28, 28)
    assert test[1].bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


REAL_DATA = os.environ.get("HOGWILD_DATA")  # read at import, before the fixture hides it


# --- .npz


def save(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


X, Y = RNG.normal(size=(6, 3)), np.array([0, 1, 2, 0, 1, 2], dtype=np.int32)


def test_npz_arrays_become_the_types_that_torch_trains_with(tmp_path: Path) -> None:
    x, y = Npz(save(tmp_path / "a.npz", x=X, y=Y)).tensors
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert torch.equal(x, torch.from_numpy(X).float()) and y.tolist() == Y.tolist()


@pytest.mark.parametrize(
    ("stored", "as_input", "as_target"),
    [
        ("f2", torch.float32, torch.float32),
        ("f4", torch.float32, torch.float32),
        (">f8", torch.float32, torch.float32),
        ("u1", torch.uint8, torch.int64),
        (">i4", torch.int32, torch.int64),
        ("u2", torch.int32, torch.int64),
        ("u8", torch.int64, torch.int64),
        ("?", torch.bool, torch.int64),
    ],
)
def test_each_stored_type_has_its_tensor_type(
    tmp_path: Path, stored: str, as_input: torch.dtype, as_target: torch.dtype
) -> None:
    values = np.array([[0, 1], [1, 0]]).astype(stored)
    x, y = Npz(save(tmp_path / "a.npz", x=values, y=values)).tensors
    assert (x.dtype, y.dtype) == (as_input, as_target)
    assert x.tolist() == y.tolist() == [[0, 1], [1, 0]]


def test_npz_takes_several_inputs_in_the_order_named(tmp_path: Path) -> None:
    file = save(tmp_path / "a.npz", user=Y, article=X, rating=X[:, 0])
    user, article, rating = Npz(file, inputs=["user", "article"], target="rating").tensors
    assert (user.shape, article.shape, rating.shape) == ((6,), (6, 3), (6,))


def test_npz_is_looked_for_below_root_below_the_data_folder_and_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for count, folder in enumerate(("here", "dir", "root"), start=1):
        (tmp_path / folder / "sub").mkdir(parents=True)
        save(tmp_path / folder / "sub" / "a.npz", x=X[:count], y=Y[:count])
    monkeypatch.chdir(tmp_path / "here")
    assert len(Npz("sub/a.npz")) == 1
    locate.set_data_dir(tmp_path / "dir")
    assert len(Npz("sub/a.npz")) == 2
    assert len(Npz("sub/a.npz", root=tmp_path / "root")) == 3


def test_a_missing_npz_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=rf"no folder holds b.npz.*\n  {tmp_path}: does not hold b.npz"):
        Npz(tmp_path / "b.npz")


class Bomb:
    """Would leave a mark if it were ever unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (sys.exit, ("unpickled",))


def test_npz_never_unpickles(tmp_path: Path) -> None:
    file = save(tmp_path / "a.npz", x=np.array([Bomb()] * 6, dtype=object), y=Y)
    with pytest.raises(DataError, match=r"a.npz: array 'x' holds Python objects, which are never loaded"):
        Npz(file)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X, "label": Y}, r"no array named y; it holds x, label"),
        ({"x": X, "y": Y[:5]}, r"the same number of rows, found x 6, y 5"),
        ({"x": X[:0], "y": Y[:0]}, r"contains no samples"),
        ({"x": X, "y": np.array(["cat", "dog"])}, r"array 'y' has type <U3: must be"),
        ({"x": X * 1j, "y": Y}, r"array 'x' has type complex128: must be"),
        ({"x": np.float64(1.0), "y": Y}, r"'x' is not an array of samples"),
        (
            {"x": X, "y": np.array([2**64 - 1] * 6, dtype=np.uint64)},
            r"'y' contains 18446744073709551615, which does not fit",
        ),
    ],
)
def test_arrays_that_cannot_be_trained_on_are_named(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    file = save(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        Npz(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:-30], r"a.npz: not an .npz file, or truncated \(\d+ bytes"),
        (
            lambda raw: raw.replace(X.tobytes(), X.tobytes()[:5] + b"!" + X.tobytes()[6:]),
            r"array 'x' is damaged: .*CRC",
        ),
    ],
)
def test_a_truncated_or_damaged_npz_is_an_error(tmp_path: Path, damage: Any, message: str) -> None:
    file = save(tmp_path / "a.npz", x=X, y=Y)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=message):
        Npz(file)
