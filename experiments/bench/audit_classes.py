"""Plants classes cut in two, classes put together and copies in a test part, and lets the audit find them.

    python -m experiments.bench.audit_classes --out experiments/results/audit-classes.json

In Glyphs (200 letters) and in drawn scenes (80, 24 views of each) a tenth of the classes is cut in two at random, a
tenth is put together in pairs, and some images are stored again as JPEG files in a test part, where a fifth of the
others is, too. Then `robustdml audit` learns from these labels. Classes that look alike anyway count against it.
"""

import argparse
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from robustdml.audit.classes import doubt_classes
from robustdml.audit_report.copies import find_copies, trained_on
from robustdml.audit_report.learning import learn_embeddings
from robustdml.config import TrainingConfig
from robustdml.data import Split, load_data
from robustdml.data.dataset import Samples

COPIES, QUALITY = 200, 90
FIRST_SEED = 60  # plantings of the seeds below served to choose the audit's thresholds, or were seen before
SCENES, VIEWS, SIDE = 80, 24, 64


def draw_scenes(seed: int) -> Split:
    """Smooth scenes in colour, a class each, with noise that differs from view to view."""
    random = np.random.default_rng(seed)
    images = []
    for scene in random.integers(0, 255, (SCENES, 7, 9, 3)):
        for _ in range(VIEWS):
            colours = (scene + random.normal(size=scene.shape) * 30).clip(0, 255).astype(np.uint8)
            view = Image.fromarray(colours).resize((200, 150), Image.Resampling.BICUBIC)
            images.append(np.asarray(view.resize((SIDE, SIDE))).transpose(2, 0, 1))
    return Split(np.stack(images), np.repeat(np.arange(SCENES), VIEWS), tuple(map(str, range(SCENES))))


# The data to plant in, by a seed.
DATA: dict[str, Callable[[int], Split]] = {"glyphs": lambda _: load_data("glyphs").train, "scenes": draw_scenes}


def stored_again(image: np.ndarray) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0).squeeze()).save(file, "JPEG", quality=QUALITY)
    return np.asarray(Image.open(file)).reshape(*image.shape[1:], -1).transpose(2, 0, 1)


def measure(data: str, seed: int) -> dict[str, list[float]]:
    """Precision and recall of each list."""
    train, random = DATA[data](seed), np.random.default_rng(seed)
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
    images = np.asarray(train.inputs)
    inputs = np.concatenate([images, [stored_again(images[row]) for row in copied]])
    in_test = np.concatenate([random.random(len(train)) < 0.2, np.ones(COPIES, dtype=bool)])
    in_test[copied] = False
    used, labels = np.unique(labels, return_inverse=True)
    samples = Samples(inputs, labels, tuple(map(str, used)), source=data)
    groups = find_copies(samples)
    with tempfile.TemporaryDirectory() as folder:
        features, untouched, _ = learn_embeddings(
            samples, trained_on(groups, labels), TrainingConfig(seed=seed), 1, Path(folder), "cpu", lambda *_: None
        )
    doubts = doubt_classes(features, labels, len(used), untouched)
    grouped = (np.flatnonzero(groups == group).tolist() for group in range(int(groups.max()) + 1))
    copies = {(i, j) for rows in grouped for i in rows for j in rows if not in_test[i] and in_test[j]}
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
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    results: dict[str, dict[str, list[list[float]]]] = {}
    for data in DATA:
        for seed in range(FIRST_SEED, FIRST_SEED + given.seeds):
            for name, scores in measure(data, seed).items():
                results.setdefault(data, {}).setdefault(name, []).append(scores)
            print(data, seed, results[data], flush=True)
    content = {"command": "python -m experiments.bench.audit_classes", "seeds": given.seeds, "results": results}
    given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
