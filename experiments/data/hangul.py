"""Hangul: syllables, each drawn in 10 to 12 ways by the typefaces of this machine (``docs/data.md``)."""

from functools import partial

from experiments.data.characters.atlas import Atlas
from experiments.data.characters.script import ClassRange, Script
from robustdml.data.named import NamedData, Pretraining

HANGUL = Script(
    Atlas("hangul", ((0xAC00, 0xD7A3),), "가"),
    packages=(
        "fonts-noto-cjk fonts-noto-cjk-extra fonts-nanum fonts-unfonts-core fonts-unfonts-extra fonts-baekmuk "
        "fonts-alee"
    ),
    pretraining=ClassRange(0, 3000),
    parts={
        "hangul": (ClassRange(4000, 5000), ClassRange(3000, 4000)),
        "hangul-validation": (ClassRange(4000, 5000), ClassRange(5000, 6000)),
    },
)

PRETRAINING = Pretraining(HANGUL.load_pretraining, HANGUL.atlas.key)
NAMED = {
    name: NamedData("Korean syllables", partial(HANGUL.load, name), "hangul-cnn", PRETRAINING) for name in HANGUL.parts
}
