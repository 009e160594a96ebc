"""The table of all settings of ``robustdml train``: its options, and the keys of ``config.yaml``, follow from it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from robustdml.config import STARTS, TrainingConfig
from robustdml.data.load import expected_data
from robustdml.errors import did_you_mean
from robustdml.filters.options import FilterOptions
from robustdml.methods import METHODS, option_groups
from robustdml.noise import NOISES
from robustdml.options import Options
from robustdml.review.uses import TRAINING_USES
from robustdml.run.tensorboard import LOGGERS
from robustdml_ops.robust import PRISM

DEFAULTS = TrainingConfig()


@dataclass(frozen=True)
class Setting:
    """A setting."""

    name: str  # As in a file, `epochs`; that of a group with its group, `filter.window`
    heading: str  # Under which `--help` lists it
    text: str  # What it does
    kind: type  # Of its values
    default: Any = None  # What it is where it is not given; None where its text says so, or it goes by the method
    choices: tuple[str, ...] | None = None  # All its values
    metavar: str | None = None  # What `--help` calls its value

    @property
    def flag(self) -> str:
        """Its option on the command line."""
        # The setting that chooses among kinds has the name of its group: --filter.
        return "--" + self.name.removesuffix(".kind").replace(".", "-").replace("_", "-")

    @property
    def group(self) -> str:
        """Name of its group, empty without one."""
        return self.name.rpartition(".")[0]

    def complaint(self, value: object) -> str | None:
        """Say what is wrong with a value from a file."""
        if self.choices is not None and value not in self.choices:
            close = did_you_mean(value, self.choices) if isinstance(value, str) else ""
            return f"expected one of {', '.join(self.choices)}{close}"
        kinds: tuple[type, ...] = (int, float) if self.kind is float else (self.kind,)
        # To Python True is a number.
        if not isinstance(value, kinds) or (isinstance(value, bool) and self.kind is not bool):
            return f"expected {_KINDS[self.kind]}"
        return None


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text, in quotes if need be"}


def all_settings() -> dict[str, Setting]:
    """List the settings, those of all registered methods among them."""
    return {setting.name: setting for part in (_of_run(), _of_groups()) for setting in part}


def _of_run() -> Iterator[Setting]:
    def field(name: str, text: str, kind: type | None = None, **more: Any) -> Setting:
        default = getattr(DEFAULTS, name)
        return Setting(name, heading, text, kind or type(default), default, **more)

    heading = "what to train"
    yield field("method", "the loss", choices=tuple(METHODS))
    yield Setting("data", heading, expected_data(), str, "glyphs")
    kinds = ", ".join(f"{kind}:RATE" for kind in NOISES)
    yield Setting(
        "noise", heading, f"training labels that are made wrong, to try things out: none, {kinds}", str, "none"
    )
    yield field(
        "noise_rate",
        "rate of wrong labels that a filter assumes (default: that of --noise, the true one, as in the papers); "
        f"for Otsu's cut the most that is rejected of a class (default: {PRISM.MOST_REJECTED})",
        float,
    )
    yield field("labels", "labels.csv of robustdml audit for these samples, whose findings are used", metavar="FILE")
    yield field(
        "labels_use",
        "drop wrong labels; correct, by their proposals; or weight all samples by the probability that the label is "
        "right",
        choices=TRAINING_USES,
    )
    yield field("labels_confidence", "least probability of a proposal that takes the place of the label")
    yield field("correct", "let what a filter rejects take part under the class that it thinks it is of")
    yield field("correct_confidence", "least probability of that class")
    heading = "network"
    yield field("finetune", "train the backbone too, rather than the embedding layer on frozen features")
    yield field(
        "backbone",
        "efficientnet-lite0 (needs the extra vision; for folders of images), timm:NAME, your own as "
        "package.module:factory, or untrained, for the built-in one as it starts (default: as goes with the data)",
    )
    yield field(
        "backbone_weights",
        "file of weights for efficientnet-lite0 or timm:NAME, instead of those that they come with",
        metavar="FILE",
    )
    yield field(
        "augment",
        "random crops and flips of the training images, where efficientnet-lite0 or timm:NAME is finetuned",
    )
    yield field(
        "embedding_size",
        "size of the embeddings (default: 64; with the principal start as many as keep the features' similarities)",
        int,
    )
    yield field(
        "start",
        "the embedding layer as it starts: random, or the principal axes of the features (default: as the method asks "
        "for)",
        str,
        choices=STARTS,
    )
    yield field(
        "averaging",
        "share of the trained embedding layer in its average with its start (default: as the method asks for: 1, or "
        "chosen by classes left out of a trial run)",
        float,
    )
    heading = "images and splits"
    yield Setting(
        "image_size", heading, "side of the images of a folder, in pixels (default: as the backbone takes)", int
    )
    yield Setting("test_fraction", heading, "share of the classes to test on", float, 0.5)
    yield Setting("split_seed", heading, "seed of that choice", int, 0)
    heading = "training"
    yield field("epochs", "passes over the training images")
    yield field("batch_size", "images a step")
    yield field(
        "samples_per_class",
        "0 for random batches, K for balanced ones with K images of each class (default: as the method asks for)",
        int,
        metavar="K",
    )
    yield field("learning_rate", "of the network (default: as the method asks for)", float)
    yield field("proxy_learning_rate", "of proxies and margins")
    yield field("weight_decay", "of the network")
    yield field("seed", "of initialisation, batches and noise")
    yield field("amp", "bf16 for bfloat16 autocast", choices=("none", "bf16"))
    heading = "where"
    yield Setting("device", heading, "auto, cpu, cuda, …", str, "auto")
    yield Setting("logger", heading, "tensorboard: event files in OUT/tensorboard, too", str, "none", LOGGERS)


def _of_groups() -> Iterator[Setting]:
    groups: list[type[Options]] = [*option_groups(), FilterOptions]
    for group in groups:
        for field in group.settings():
            text, kind, choices = (field.metadata[key] for key in ("text", "kind", "choices"))
            # Of a filter, what is not given is what the method asks for.
            default = None if group is FilterOptions else field.default
            yield Setting(
                f"{group.name}.{field.name}",
                (group.__doc__ or group.name).rstrip("."),
                text,
                kind,
                default,
                None if choices is None else tuple(choices),
            )
