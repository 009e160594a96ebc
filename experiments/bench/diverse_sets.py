"""Sets whose classes are diverse, for `experiments.bench.audit --data NAMES`: half to choose by, half to report on.

Icons come from the fonts of ``pip install --no-deps qtawesome``: a class is a meaning, such as *bell*, a sample its
drawing in one font and style. Classes in groups put three letters of Glyphs, or a printed and a written digit, under
one label. Texts are docstrings by module, and names of countries by language in babel. Drawn classes have several
clusters of unequal size. Of noise no class can be told.
"""

import json
from functools import partial
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from experiments.bench.audit_sets import CHOOSING, REPORT, AuditSet, Samples, digits, drawn, letters, numbered, texts
from experiments.data.packages import package_file
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData, Split
from robustdml.networks.preparation import prepare

SIDE, GREY, LARGEST, FONTS = 64, 16, 14, 3
# Endings of names that tell the style of a drawing.
STYLES = {"outline", "o", "fill", "line", "light", "thin", "bold", "alt", "variant", "regular", "solid"}
ICONS, GROUPS, TEXTS, CLUSTERS, NOTHING = "icons", "groups", "diverse texts", "clusters", "no classes"


def icon_drawings(half: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Drawings (N, SIDE, SIDE) of half of the meanings that three fonts share, and the meanings' numbers."""
    folder = package_file("icons", "qtawesome", "qtawesome", "__init__.py").parent / "fonts"
    found: dict[str, list[tuple[Path, int]]] = {}
    for charmap in sorted(folder.glob("*charmap*.json")):
        font = folder / charmap.name.replace("-charmap", "").replace(".json", ".ttf")
        for name, code in json.loads(charmap.read_text()).items():
            words = name.split("-")
            while len(words) > 1 and words[-1] in STYLES:
                words.pop()
            found.setdefault("-".join(words), []).append((font, int(code, 16)))
    images, labels = [], []
    for name, drawings in sorted(found.items()):
        if len({font.name[:6] for font, _ in drawings}) < FONTS or crc32(name.encode()) % 2 != half:
            continue
        order = np.random.default_rng(crc32(name.encode())).permutation(len(drawings))
        kept = dict.fromkeys(_icon(*drawings[place]) for place in order)
        images += list(kept)[:LARGEST]
        labels += [name] * min(len(kept), LARGEST)
    pixels = np.stack([np.frombuffer(one, np.uint8).reshape(SIDE, SIDE) for one in images])
    return pixels, numbered(labels)


def _icon(font: Path, code: int) -> bytes:
    path = font if font.exists() else next(font.parent.glob(font.name.split("-webfont")[0] + "*.ttf"))
    image = Image.new("L", (SIDE, SIDE))
    typeface = ImageFont.truetype(str(path), SIDE - 16)
    ImageDraw.Draw(image).text((SIDE / 2, SIDE / 2), chr(code), fill=255, font=typeface, anchor="mm")
    return image.tobytes()


def icons(half: int) -> Samples:
    """Icons in grey, GREY pixels wide."""
    pixels, labels = icon_drawings(half)
    small = torch.nn.functional.adaptive_avg_pool2d(torch.from_numpy(pixels)[:, None].float(), GREY)
    return small.flatten(1).numpy(), labels


def icons_seen(half: int) -> Samples:
    """Icons as the backbone for photographs sees them."""
    pixels, labels = icon_drawings(half)
    split = Split(np.repeat(255 - pixels[:, None], 3, 1), labels, tuple(map(str, range(int(labels.max()) + 1))))
    config = TrainingConfig(backbone="efficientnet-lite0")
    seen = prepare(config, RetrievalData(f"icons-{half}", split, split.subset(np.arange(4))), torch.device("cpu"))
    return np.asarray(seen.data.train.inputs, np.float32), labels


def grouped(part: str, classes: int, size: int) -> Samples:
    """Letters of Glyphs, three that have nothing in common under each label."""
    features, labels = letters(part, classes, size)
    group = np.random.default_rng(0).permutation(int(labels.max()) + 1) // 3
    return features, numbered(group[labels].tolist())


def pairs_of_digits(seed: int) -> Samples:
    """Handwritten digits, two of them under each label, at random."""
    features, labels = digits()
    return features, np.random.default_rng(seed).permutation(10)[labels] // 2


def languages() -> Samples:
    """Names of countries by language: n-grams of their letters, and of these the principal directions."""
    from babel import Locale

    names = [(str(text), code) for code in LANGUAGES for text in list(Locale(code).territories.values())[:30]]
    weights = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 3), min_df=2, sublinear_tf=True)
    found = TruncatedSVD(64, random_state=0).fit_transform(weights.fit_transform([name for name, _ in names]))
    return found.astype(np.float32), numbered([code for _, code in names])


LANGUAGES = (
    "de", "nl", "sv", "da", "nb", "es", "pt", "it", "fr", "ca",
    "ro", "pl", "cs", "sk", "hr", "fi", "et", "hu", "tr", "id",
)  # fmt: skip


def unequal_clusters(seed: int, classes: int, clusters: int, spread: float) -> Samples:
    """Classes of 3 to 40 samples, in several clusters of unequal size."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), np.exp(random.uniform(np.log(3), np.log(40), classes)).astype(int))
    share = random.dirichlet(np.full(clusters, 0.7), classes)
    place = (random.random((len(labels), 1)) > share.cumsum(1)[labels]).sum(1).clip(max=clusters - 1)
    means = random.normal(size=(classes, clusters, 24))[labels, place]
    return (means + spread * random.normal(size=means.shape)).astype(np.float32), labels


def nothing(seed: int, classes: int) -> Samples:
    random = np.random.default_rng(seed)
    labels = np.sort(random.integers(0, classes, 600))
    return random.normal(size=(600, 24)).astype(np.float32), labels


SETS = {
    "icons-a": AuditSet(ICONS, CHOOSING, partial(icons, 0)),
    "icons-b": AuditSet(ICONS, REPORT, partial(icons, 1)),
    "icons-seen-a": AuditSet(ICONS, CHOOSING, partial(icons_seen, 0)),
    "icons-seen-b": AuditSet(ICONS, REPORT, partial(icons_seen, 1)),
    "letters-in-threes": AuditSet(GROUPS, CHOOSING, partial(grouped, "train", 120, 8)),
    "letters-in-threes-2": AuditSet(GROUPS, REPORT, partial(grouped, "test", 240, 4)),
    "digits-in-pairs": AuditSet(GROUPS, REPORT, partial(pairs_of_digits, 0)),
    "torch-texts": AuditSet(TEXTS, CHOOSING, partial(texts, "torch", 1)),
    "rich-texts": AuditSet(TEXTS, CHOOSING, partial(texts, "rich", 1)),
    "sympy-texts": AuditSet(TEXTS, REPORT, partial(texts, "sympy", 1)),
    "languages": AuditSet(TEXTS, REPORT, languages),
    "drawn-clusters": AuditSet(CLUSTERS, CHOOSING, partial(unequal_clusters, 1, 50, 4, 0.7)),
    "drawn-clusters-close": AuditSet(CLUSTERS, CHOOSING, partial(unequal_clusters, 2, 50, 3, 1.1)),
    "drawn-clusters-2": AuditSet(CLUSTERS, REPORT, partial(unequal_clusters, 3, 70, 6, 0.6)),
    "drawn-clusters-large": AuditSet(CLUSTERS, REPORT, partial(drawn, 11, np.full(20, 40), 16, 0.8, 0.0, 5)),
    "noise": AuditSet(NOTHING, CHOOSING, partial(nothing, 1, 20)),
    "noise-2": AuditSet(NOTHING, REPORT, partial(nothing, 2, 60)),
}
