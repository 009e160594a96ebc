"""Photographs of some 250 things, each in twelve views, from Debian's ``tuxpaint-stamps-default``.

A class is a thing: an animal, a fruit, a tool. Each was photographed once and cut out. A view turns the cut-out,
changes its size, light and colour, and lays it on a ground in the colours of another thing; in half of the views a part
is covered.
"""

import hashlib
import io
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter

from experiments.data.splits import divide
from robustdml.arrays import Pixels
from robustdml.data.dataset import RetrievalData, Split
from robustdml.data.named import NamedData
from robustdml.errors import UsageError
from robustdml.networks.backbones.photographs import EFFICIENTNET

FOLDER = Path("/usr/share/tuxpaint/stamps")
SIDE, VIEWS, LEAST_SIDE = 112, 12, 96
_SEED = 0
# Folders and files of drawings.
_DRAWN = {"cartoon", "clothes", "flags", "roadsigns", "seasonal", "space", "symbols", "naturalforces"}
_DRAWN |= {"7spoke256", "Woodlouse", "bee", "birch", "echidna", "explosion", "eye", "fly", "glass", "hedgehog"}
_DRAWN |= {"inukshuk-outline", "pizza_slice", "rugby_goal_posts", "tooth", "anthem"}


def photographs(folder: Path) -> list[Path]:
    """Files of the cut-out photographs, each picture once."""
    known: dict[str, Path] = {}
    for file in sorted(folder.rglob("*.png")):
        parts = {*file.relative_to(folder).parts[:-1], file.stem}
        if parts & _DRAWN or file.stem.endswith(("_mirror", "_flip")):
            continue
        with Image.open(file) as image:
            if max(image.size) >= LEAST_SIDE:
                known.setdefault(hashlib.sha256(file.read_bytes()).hexdigest(), file)
    return sorted(known.values())


def view(thing: Image.Image, other: Image.Image, random: np.random.Generator) -> Pixels:
    """One picture (3, S, S) of a cut-out on a ground in the colours of another."""
    ground = other.convert("RGB").resize((4, 4), Image.Resampling.BOX).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    angle, scale = random.uniform(-20, 20), random.uniform(0.6, 1)
    turned = thing.rotate(angle, Image.Resampling.BICUBIC, expand=True)
    if random.random() < 0.5:
        turned = turned.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    turned.thumbnail((round(scale * SIDE),) * 2)
    place = [round(random.uniform(0, 1) * (SIDE - side)) for side in turned.size]
    ground.paste(turned, tuple(place), turned)
    if random.random() < 0.5:  # a hand, a label, the edge of another thing
        width, height = random.integers(SIDE // 8, SIDE // 2, size=2)
        x, y = random.integers(0, SIDE - width), random.integers(0, SIDE - height)
        ground.paste(tuple(random.integers(30, 225, size=3).tolist()), (x, y, x + width, y + height))
    lit = ImageEnhance.Brightness(ground).enhance(random.uniform(0.6, 1.3))
    lit = (
        ImageEnhance.Color(lit)
        .enhance(random.uniform(0.6, 1.2))
        .filter(ImageFilter.GaussianBlur(random.uniform(0, 1.2)))
    )
    tinted = (np.asarray(lit) * random.uniform(0.9, 1.1, size=3)).clip(0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(tinted).save(file, "JPEG", quality=int(random.integers(40, 90)))
    pixels: Pixels = np.asarray(Image.open(file)).transpose(2, 0, 1)
    return pixels


def load_stamps(name: str, folder: Path = FOLDER) -> RetrievalData:
    """Make the views of all things; half of the things are for training."""
    files = photographs(folder)
    if len(files) < 4:
        raise UsageError(
            f"data {name!r} is made from photographs in {folder}, and there are {len(files)}; install them "
            "(Debian, Ubuntu: apt install tuxpaint-stamps-default)"
        )
    random = np.random.default_rng(_SEED)
    things = [_opened(file) for file in files]
    grounds = random.integers(len(things), size=(len(things), VIEWS))
    images = np.stack(
        [view(thing, things[row], random) for thing, rows in zip(things, grounds, strict=True) for row in rows]
    )
    names = tuple(str(file.relative_to(folder).with_suffix("")) for file in files)
    return divide(name, Split(images, np.repeat(np.arange(len(things), dtype=np.int64), VIEWS), names))


def _opened(file: Path) -> Image.Image:
    image = Image.open(file).convert("RGBA")
    image.thumbnail((2 * SIDE, 2 * SIDE))
    enlarged = SIDE / max(image.size)
    return image if enlarged <= 1 else image.resize([max(1, round(side * enlarged)) for side in image.size])


NAMED = {
    name: NamedData("photographs", partial(load_stamps, name), EFFICIENTNET) for name in ("stamps", "stamps-validation")
}
