"""Plants classes cut in two, classes put together and copies in a test part of Glyphs, and lets the audit find them.

    python -m experiments.bench.audit_classes --out experiments/results/audit-classes.json

Of 200 letters 20 are cut in two at random, 20 are put together in pairs, and 200 images are stored again as JPEG files
in a test part, where a fifth of the others is, too. Then `robustdml audit` learns from these labels. Letters that look
alike anyway count against it.
"""

import argparse
import io
import json
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from robustdml.audit.classes import doubt_classes
from robustdml.audit_report.copies import find_copies
from robustdml.audit_report.learning import learn_embeddings
from robustdml.audit_report.samples import AuditSamples
from robustdml.config import TrainingConfig
from robustdml.data import Split, load_data

COPIES, QUALITY = 200, 90
FIRST_SEED = 20  # plantings of the seeds below served to choose the audit's thresholds, or were seen before


def stored_again(image: np.ndarray) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(image[0]).save(file, "JPEG", quality=QUALITY)
    return np.asarray(Image.open(file))[None]


def measure(train: Split, seed: int, wrong: float) -> dict[str, list[float]]:
    """Precision and recall of each list."""
    random = np.random.default_rng(seed)
    classes = random.permutation(train.num_classes)
    cut, pairs = classes[: len(classes) // 10], classes[len(classes) // 10 :][: len(classes) // 10].reshape(-1, 2)
    labels = train.labels.copy()
    for place, label in enumerate(cut):
        rows = np.flatnonzero(labels == label)
        labels[random.permutation(rows)[: len(rows) // 2]] = train.num_classes + place
    for first, second in pairs:
        labels[labels == second] = first
    copied = random.choice(len(train), COPIES, replace=False)
    labels = np.concatenate([labels, labels[copied]])
    inputs = np.concatenate([train.inputs, [stored_again(train.inputs[row]) for row in copied]])
    in_test = np.concatenate([random.random(len(train)) < 0.2, np.ones(COPIES, dtype=bool)])
    in_test[copied] = False
    used, labels = np.unique(labels, return_inverse=True)
    labels = np.where(random.random(len(labels)) < wrong, random.integers(0, len(used), len(labels)), labels)
    names = [str(row) for row in range(len(labels))]
    samples = AuditSamples("glyphs", names, labels, tuple(map(str, used)), inputs)
    with tempfile.TemporaryDirectory() as folder:
        features = learn_embeddings(samples, TrainingConfig(seed=seed), 1, Path(folder), "cpu", lambda *_: None)
    doubts = doubt_classes(features, labels, len(used))
    copies = {(near, row) for row, alike in find_copies(inputs, in_test).items() for near in alike}
    number = {int(label): place for place, label in enumerate(used)}
    planted = {
        "one": {(number[int(label)], number[train.num_classes + place]) for place, label in enumerate(cut)},
        "two": {number[int(first)] for first, _ in pairs},
        "copies": {(int(row), len(train) + place) for place, row in enumerate(copied)},
    }
    found = {"one": {pair[:2] for pair in doubts.one}, "two": {label for label, _ in doubts.two}, "copies": copies}
    return {
        name: [len(found[name] & truth) / max(len(found[name]), 1), len(found[name] & truth) / len(truth)]
        for name, truth in planted.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--wrong", type=float, nargs="+", default=[0.0], help="shares of labels drawn at random")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    train = load_data("glyphs").train
    results: dict[str, dict[str, list[list[float]]]] = {}
    for wrong in given.wrong:
        for seed in range(FIRST_SEED, FIRST_SEED + given.seeds):
            for name, scores in measure(train, seed, wrong).items():
                results.setdefault(f"{wrong:g}", {}).setdefault(name, []).append(scores)
            print(wrong, seed, results[f"{wrong:g}"], flush=True)
    content = {"command": "python -m experiments.bench.audit_classes", "seeds": given.seeds, "results": results}
    given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
