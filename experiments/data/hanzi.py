"""Hanzi: 29,000 Han characters, each drawn in 10 to 12 ways by the typefaces of this machine (``docs/data.md``)."""

from functools import partial

from experiments.data.characters.atlas import Atlas
from experiments.data.characters.script import ClassRange, Script
from robustdml.data.named import NamedData, Pretraining

HANZI = Script(
    # The first block, extension A, and all later extensions; the probes are the commonest character of the first, and
    # the first character of B, for which there are fonts of their own.
    Atlas("hanzi", ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x323AF)), "一\U00020000", distorted=True),
    packages=(
        "fonts-noto-cjk fonts-noto-cjk-extra fonts-cns11643-kai fonts-cns11643-sung fonts-hanazono fonts-ipamj-mincho "
        "fonts-babelstone-han fonts-wqy-zenhei fonts-droid-fallback fonts-arphic-ukai fonts-arphic-uming "
        "fonts-lxgw-wenkai"
    ),
    pretraining=ClassRange(0, 4000),
    parts={
        "hanzi": (ClassRange(9000, 29000), ClassRange(4000, 9000)),
        "hanzi-validation": (ClassRange(9000, 24000), ClassRange(24000, 29000)),
        "hanzi-small": (ClassRange(9000, 10000), ClassRange(4000, 5000)),
        "hanzi-small-validation": (ClassRange(9000, 10000), ClassRange(24000, 25000)),
    },
)

PRETRAINING = Pretraining(HANZI.load_pretraining, HANZI.atlas.key)
NAMED = {name: NamedData("Han characters", partial(HANZI.load, name), "hanzi-cnn", PRETRAINING) for name in HANZI.parts}
