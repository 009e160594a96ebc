"""Settings of the data of a run, and of the machine it runs on."""

from dataclasses import dataclass

from robustdml.data.load import expected_data
from robustdml.noise import NOISES
from robustdml.options import Options, option


@dataclass(frozen=True)
class DataSettings(Options):
    """Data."""

    data: str = option("glyphs", expected_data, heading="data")
    noise: str = option(
        "none",
        lambda: (
            "training labels that are made wrong, to try things out: none, "
            + ", ".join(f"{kind}:RATE" for kind in NOISES)
        ),
    )
    image_size: int | None = option(
        None, "side of the images of a folder, in pixels (default: the size that the backbone takes)", at_least=1
    )
    test_fraction: float = option(0.5, "fraction of the classes to test on")
    split_seed: int = option(0, "seed of the choice of test classes")


@dataclass(frozen=True)
class PlaceSettings(Options):
    """Where it runs, and what it writes."""

    device: str = option("auto", "auto, cpu, cuda, …", heading="where")
    logger: str = option(
        "none", "tensorboard: also write event files to OUT/tensorboard", choices=("none", "tensorboard")
    )
