"""From the command line and ``config.yaml`` to the settings of a run, in one call."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustdml.config import TrainingConfig
from robustdml.errors import UsageError
from robustdml.noise import parse_noise
from robustdml.settings.file import FILE_NAME, read_settings
from robustdml.settings.given import (
    DataSettings,
    Given,
    PlaceSettings,
    all_settings,
    complete_settings,
    make_config,
    make_group,
    merge,
    value_of,
)

# Settings that a checkpoint does not hold: it has the name and the sizes of the data.
SPLIT_SETTINGS = ("test_fraction", "split_seed", "noise")


@dataclass(frozen=True)
class RunSettings:
    """All that is set of a run."""

    config: TrainingConfig
    data: DataSettings
    place: PlaceSettings
    complete: dict[str, Any]  # Every setting that has an effect, for ``config.yaml``


def read_run_settings(options: Mapping[str, Any], file: Path | None, out: Path | None, resume: bool) -> RunSettings:
    """Read options (None: not given) and a file, by default that of the run to resume, and check them."""
    given = {
        name: Given(options[name], f"--no-{setting.flag[2:]}" if options[name] is False else setting.flag)
        for name, setting in all_settings().items()
        if options[name] is not None
    }
    own = read_settings(out / FILE_NAME) if resume and out is not None and (out / FILE_NAME).exists() else {}
    given = merge(given, own if file is None else read_settings(file))
    for name in SPLIT_SETTINGS if own else ():
        then, now = value_of(own, name), value_of(given, name)
        if then != now:
            raise UsageError(f"{out} holds a run on other data: give the same settings. {name}: {then} then, {now} now")
    data, place = make_group(DataSettings, given), make_group(PlaceSettings, given)
    try:
        config = make_config(given)
        parse_noise(data.noise)
    except UsageError as error:
        if file is None:
            raise
        raise UsageError(f"{error} (settings of {file} and of the command line)") from error
    if place.logger != "none" and out is None:
        raise UsageError(f"{given['logger'].where} needs --out, the folder for its files")
    return RunSettings(config, data, place, complete_settings(config, given))
