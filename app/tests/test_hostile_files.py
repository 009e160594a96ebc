"""Arrays, texts and models of strangers: what they claim, and what they would run."""

import contextlib
import io
import os
import random
import zipfile

import numpy as np
import pytest
import torch

from app.tests.conftest import finding
from robustdml import plain_files
from robustdml.audit_report.findings import read_findings, write_findings
from robustdml.audit_report.samples import read_samples
from robustdml.cache import read_array, write_checked
from robustdml.data.features import load_features
from robustdml.data.load import load_data
from robustdml.errors import UsageError
from robustdml.plain_files import read_json, read_npz, read_plain, save_plain
from robustdml.trained.embedder import load_embedder


def arrays(**changes):
    features = np.random.default_rng(0).normal(size=(24, 5)).astype(np.float32)
    return {"features": features, "labels": np.arange(24) % 6} | changes


def saved(path, **changes):
    np.savez_compressed(path, **arrays(**changes))
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda X: X.astype(">f4"),
        lambda X: X.astype(">f8"),
        lambda X: X.astype(np.longdouble),
        lambda X: np.asfortranarray(X),
        lambda X: np.asfortranarray(X).astype(">f8"),
    ],
    ids=["big-endian", "big-endian double", "long double", "Fortran", "Fortran big-endian"],
)
def test_numbers_of_other_kinds_are_the_same_numbers(tmp_path, change):
    plain = load_features(saved(tmp_path / "plain.npz"))
    labels = {"labels": (np.arange(24) % 6).astype(">i2")}
    changed = saved(tmp_path / "other.npz", features=change(arrays()["features"]), **labels)
    other = load_data(str(changed.rename(tmp_path / "other.NPZ")))
    for split, same in ((plain.train, other.train), (plain.test, other.test)):
        np.testing.assert_array_equal(split.inputs, same.inputs)
        np.testing.assert_array_equal(split.labels, same.labels)
        assert same.inputs.dtype == np.float32 and same.inputs.flags.c_contiguous and same.labels.dtype == np.int64
    for samples in (read_samples(str(tmp_path / name)) for name in ("plain.npz", "other.NPZ")):
        np.testing.assert_array_equal(samples.inputs, arrays()["features"])
        assert samples.inputs.flags.c_contiguous


def with_member(path, name, content, **how):
    """An archive of plain arrays, one of which is ``content``."""
    with zipfile.ZipFile(path, "w", **how) as archive:
        for key, array in arrays().items():
            text = io.BytesIO()
            np.lib.format.write_array(text, array)
            archive.writestr(f"{key}.npy", content if key == name else text.getvalue())
    return path


def claiming(shape, content=b"", descr="<f4"):
    text = io.BytesIO()
    np.lib.format.write_array_header_1_0(text, {"descr": descr, "fortran_order": False, "shape": shape})
    return text.getvalue() + content


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (claiming((10**12, 10**3)), "of shape (1000000000000, 1000) by its header, and has 0 bytes"),
        (claiming((24, 5), b"\0" * 479), "and has 479 bytes"),
        (claiming((24, 5), b"\0" * 481), "and has 481 bytes"),
        (claiming((-1, 5), b"\0" * 480), "by its header"),
        (claiming((24, 5), b"\0" * 480, "|O"), "Object arrays"),
        (b"", "not a readable .npz"),
        (b"\x93NUMPY\x03\x00", "version (3, 0)"),
        (b"no array at all", "not a readable .npz"),
        (b"\x93NUMPY\x01\x00\x20\x00{'descr': " + b"[" * 22, "not a readable .npz"),
    ],
)
def test_arrays_that_are_not_what_their_header_says(tmp_path, content, words, monkeypatch):
    def never(*_, **__):
        pytest.fail("memory was given to it")

    monkeypatch.setattr(np.lib.format, "read_array", never)
    with pytest.raises(UsageError, match=r"features.npz: not a readable .npz file of plain arrays \(.*\)$") as raised:
        read_npz(with_member(tmp_path / "features.npz", "features", content), ["features"])
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_a_few_bytes_that_unpack_to_gigabytes(tmp_path, monkeypatch):
    zeros = claiming((2**20,), b"\0" * 2**22)
    path = with_member(tmp_path / "bomb.npz", "features", zeros, compression=zipfile.ZIP_DEFLATED)
    monkeypatch.setattr(plain_files, "LARGE", 2**20)
    with pytest.raises(UsageError, match=r"features.npy would unpack from [\d,]+ bytes to 4,194,"):
        load_features(path)
    # What nobody asks for is not unpacked.
    assert list(read_npz(path, ["labels"])) == ["labels"]
    monkeypatch.setattr(plain_files, "MOST_PACKED", 10**6)
    monkeypatch.setattr(plain_files, "_memory", lambda: 2**21)
    with pytest.raises(MemoryError, match=r"bomb.npz: features.npy takes 4,194,304 bytes, and this machine has 2,097"):
        read_npz(path, ["features"])


@pytest.mark.parametrize("paths", [np.ones(24), np.array(["a"]), np.array([["a"] * 24])])
def test_paths_that_are_no_texts_one_a_row(tmp_path, paths):
    with pytest.raises(UsageError, match=r"features.npz: paths is .*; expected texts of shape \(24,\)"):
        read_samples(str(saved(tmp_path / "features.npz", paths=paths)))


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, '"\\ud800"', "\x00"])
def test_json_that_is_none(tmp_path, text):
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(UsageError, match=r"state.json: not a readable state \(.+\)$"):
        read_json(tmp_path / "state.json", "state")


def listed(path, optional=()):
    return {key: value.tolist() for key, value in read_npz(path, ["features", "labels"], optional).items()}


NAMES = {"class_names": np.array(list("abcdef")), "paths": np.array([f"{row}.jpg" for row in range(24)])}
FLIPPED = {  # by the name of a file: how it is written, and read
    "checkpoint.pt": (save_plain, lambda path: str(read_plain(path, "checkpoint", checked=True))),
    "model.pt": (save_plain, lambda path: str(read_plain(path, "model file"))),
    "plain.npz": (lambda path, _: np.savez(path, **arrays()), listed),
    "embeddings.npz": (lambda path, _: saved(path, **NAMES), lambda path: listed(path, [*NAMES])),
    "cached.npy": (
        lambda path, _: write_checked(path, lambda file: np.save(file, arrays()["features"])),
        lambda path: read_array(path, "r").tolist(),
    ),
}


@pytest.mark.parametrize("times", [50, pytest.param(300, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", FLIPPED)
def test_damage_is_told_in_one_sentence_or_changes_nothing(name, times, tmp_path):
    """Bits flipped, bytes changed, files cut off: many end in errors of zlib, of zipfile, or of Python's parser."""
    path, (write, read) = tmp_path / name, FLIPPED[name]
    write(path, {"state": torch.arange(600.0), "history": [{"epoch": 1, "loss": 0.25}]})
    whole, expected, told = path.read_bytes(), read(path), []
    chance = random.Random(0)
    for number in range(times):
        damaged = bytearray(whole)
        place = chance.randrange(len(whole))
        if number % 5 == 0:
            del damaged[place:]
        elif number % 5 == 1:
            for other in [place, *(chance.randrange(len(whole)) for _ in range(3))]:
                damaged[other] = chance.randrange(256)
        else:
            damaged[place] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            found = read(path)
        except UsageError as error:
            told.append(str(error))
            continue
        # Bytes that no reader looks at: of an archive's headers, or of the mark before a checksum.
        assert found == expected, place
        assert name != "checkpoint.pt" or damaged == whole, place
    assert len(told) > 0.6 * times and not any("\n" in one for one in told)


def test_a_damaged_mark_of_a_checksum_hides_nothing(tmp_path):
    save_plain(tmp_path / "model.pt", {"x": torch.zeros(9)})
    content = bytearray((tmp_path / "model.pt").read_bytes())
    content[content.rindex(b"sha256")] ^= 1
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(UsageError, match="a damaged model file, which ends neither as an archive nor in a checksum"):
        read_plain(tmp_path / "model.pt", "model file")


@pytest.mark.parametrize("flips", [30, pytest.param(200, marks=pytest.mark.nightly)])
def test_a_flipped_bit_in_findings_is_refused_or_makes_another_text(flips, tmp_path):
    path, places = tmp_path / "labels.csv", random.Random(0)
    write_findings(path, [finding(f"{row}.jpg") for row in range(40)])
    whole, read = path.read_bytes(), 0
    for _ in range(flips):
        damaged = bytearray(whole)
        damaged[places.randrange(len(whole))] ^= 1 << places.randrange(8)
        path.write_bytes(damaged)
        with contextlib.suppress(UsageError):
            read_findings(path)
            read += 1
    assert read < flips / 2


@pytest.mark.parametrize("place", ["the name of paths", "a length that takes paths in"])
def test_a_directory_that_hides_an_array(tmp_path, place):
    """Without it other names, or integers, would stand for the samples."""
    path = saved(tmp_path / "features.npz", **NAMES)
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\x01\x02")  # of paths, the last one
    if place == "the name of paths":
        content[entry + 46] ^= 1
    else:  # that of the comment of the entry before
        content[content.rindex(b"PK\x01\x02", 0, entry) + 33] ^= 1
    path.write_bytes(content)
    words = r"features.npz: not a readable .npz file of plain arrays \(.*(differ|counts 4)"
    with pytest.raises(UsageError, match=words):
        load_features(path)


class Harmful:
    def __reduce__(self):
        return (os.mkdir, ("taken",))


def test_pickles_are_not_run(tmp_path):
    """Which would make a folder in the current one, that of the test."""
    torch.save({"x": Harmful()}, tmp_path / "harmful.pt")
    np.savez(tmp_path / "harmful.npz", **arrays(labels=np.array([Harmful()] * 24, dtype=object)))
    for read in (
        lambda: read_plain(tmp_path / "harmful.pt", "checkpoint"),
        lambda: load_embedder(tmp_path / "harmful.pt"),
        lambda: load_features(tmp_path / "harmful.npz"),
        lambda: read_samples(str(tmp_path / "harmful.npz")),
    ):
        words = r"harmful.*: not a readable .*(could run code; none was run|may run code)"
        with pytest.raises(UsageError, match=words) as told:
            read()
        assert "weights_only" not in str(told.value)
    assert not (tmp_path / "taken").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": None}, "of format None"),
        ({"format": 99, "package_version": "9"}, "format 99, written by robustdml_ops 9; this version reads format 1"),
        ({"input_shape": [3, 10**6, 10**6]}, "expected (F,), (1, S, S) or (3, S, S)"),
        ({"embedding_size": 10**12}, "expected integers from 1 to"),
        ({"embedding_size": "8"}, "expected integers from 1 to"),
        ({"embedding_size": 2**20}, "its embedding layer is of shape"),
        ({"num_features": -1}, "expected integers from 1 to"),
        ({"class_names": [3]}, "no texts"),
        ({"state": [1]}, "no tensors by name"),
        ({"state": {}}, "head.weight"),
        ({"backbone": ["x"]}, "no texts"),
    ],
)
def test_model_files_with_parts_that_are_wrong(tmp_path, feature_run, change, words):
    model = torch.load(feature_run[1] / "model.pt", weights_only=True)
    torch.save(model | change, tmp_path / "model.pt")
    with pytest.raises(UsageError, match=r"model.pt: a model file ") as raised:
        load_embedder(tmp_path)
    assert words in str(raised.value)


def test_split_by_class_with_any_integer_labels(tmp_path):
    labels = np.array([-5, 900, 7, 7, 900, -5, 12], dtype=np.int16)
    features = np.arange(7, dtype=np.float64)[:, None] * [1, 10]
    data = load_features(saved(tmp_path / "set.npz", features=features, labels=labels))
    assert sorted(data.train.class_names + data.test.class_names) == ["-5", "12", "7", "900"]
    for split in (data.train, data.test):
        assert split.inputs.dtype == np.float32
        assert sorted(set(split.labels)) == [0, 1]
        for row, label in zip(split.inputs, split.labels, strict=True):
            assert labels[int(row[0])] == int(split.class_names[label])


def test_own_test_part_in_half_precision_whose_labels_may_number_names(tmp_path):
    arrays = dict.fromkeys(("features", "test_features"), np.arange(4, dtype=np.float16)[:, None])
    arrays |= {"labels": [3, 1, 3, 0], "test_labels": [2, 2, 0, 9]}
    data = load_features(saved(tmp_path / "set.npz", **arrays))
    assert data.train.labels.tolist() == [2, 1, 2, 0] and data.test.class_names == ("0", "2", "9")
    arrays |= {"test_labels": [2, 2, 0, 2], "class_names": ["wren", "auk", "owl", "crow"]}
    data = load_features(saved(tmp_path / "set.npz", **arrays))
    assert [data.train.class_names[label] for label in data.train.labels] == ["crow", "auk", "crow", "wren"]
    assert [data.test.class_names[label] for label in data.test.labels] == ["owl", "owl", "wren", "owl"]


X = np.ones((4, 3), np.float32)
Y = np.array([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"features": X}, "no array 'labels'; found features"),
        ({"labels": Y}, "no array 'features'"),
        ({"features": X[0], "labels": Y}, r"float32 \(3,\); expected numbers \(N, F\)"),
        ({"features": X[:0], "labels": Y[:0]}, r"\(0, 3\)"),
        ({"features": X.astype(str), "labels": Y}, "<U"),
        ({"features": X, "labels": Y[:3]}, r"labels is int64 \(3,\); expected integers or texts of shape \(4,\)"),
        ({"features": X, "labels": Y.astype(float)}, "labels is float64"),
        ({"features": np.where(np.eye(4, 3), np.nan, X), "labels": Y}, "3 rows of features with NaN .* the first is 0"),
        ({"features": X, "labels": Y, "test_labels": Y}, "both or neither"),
        ({"features": X, "labels": Y, "test_features": X[:, :2], "test_labels": Y}, "3 columns, and test_features 2"),
        ({"features": X, "labels": Y * 0}, "at least 2 classes"),
        ({"features": X, "labels": Y + 1, "class_names": ["a", "b"]}, r"class_names is <U1 \(2,\), .* from 1 to 2"),
        ({"features": X, "labels": Y - 1, "class_names": ["a", "b"]}, "labels go from -1 to 0; expected texts, one"),
        ({"features": X, "labels": Y, "class_names": [1, 2]}, "class_names is int64"),
        ({"features": X, "labels": Y, "class_names": ["crane"] * 2}, "class_names calls 2 labels 'crane'; give"),
    ],
)
def test_bad_files_are_told(tmp_path, arrays, message):
    path = tmp_path / "set.npz"
    np.savez(path, **arrays)
    with pytest.raises(UsageError, match=message) as error:
        load_features(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "content", [{"x": torch.zeros(1).expand(10**8)}, [{"a": (torch.zeros(3, 1).expand(3, 10**8),)}]]
)
def test_a_tensor_of_few_bytes_that_claims_many(tmp_path, content):
    save_plain(tmp_path / "model.pt", content)
    with pytest.raises(
        UsageError, match=r"model\.pt: not a readable model file \(its tensors claim [\d,]+ bytes, and it"
    ):
        read_plain(tmp_path / "model.pt", "model file")


def test_a_packed_archive_is_not_unpacked(tmp_path, monkeypatch):
    torch.save({"x": torch.zeros(10**6)}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, zipfile.ZipFile(tmp_path / "model.pt", "w") as packed:
        for info in plain.infolist():
            packed.writestr(info.filename, plain.read(info), zipfile.ZIP_DEFLATED)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("memory was given to it"))
    with pytest.raises(UsageError, match=r"it would unpack to 4,[\d,]+ bytes, and PyTorch packs none"):
        read_plain(tmp_path / "model.pt", "model file")
