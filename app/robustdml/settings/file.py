"""The settings of a run, from the command line and from ``config.yaml``, which a person can read and change."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from robustdml.cache import write_text
from robustdml.config import TrainingConfig
from robustdml.errors import UsageError, did_you_mean
from robustdml.noise import parse_noise
from robustdml.options import Setting
from robustdml.progress import Recorder
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
from robustdml_ops import __version__

CONFIG_FILE = "config.yaml"
# They say what to do with the settings, and are none.
COMMAND_LINE_ONLY = ("config", "out", "resume")


def read_settings(path: Path) -> dict[str, Given]:
    """Read what a file sets."""
    if not path.exists():
        raise UsageError(f"{path}: no such file; --out FOLDER of an earlier run holds one, {CONFIG_FILE}")
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), _Loader)
        if not isinstance(node, yaml.MappingNode):
            raise UsageError(f"{path}: expected settings, such as `epochs: 30`")
        return _checked(path, dict(_leaves(path, node, "")))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise UsageError(f"{path}{where}: not readable as YAML ({getattr(error, 'problem', error)})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a text in UTF-8 ({error})") from error


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write settings as `read_settings` reads them."""
    nested: dict[str, Any] = {}
    for name, value in settings.items():
        group, _, key = name.rpartition(".")
        (nested.setdefault(group, {}) if group else nested)[key] = value
    text = yaml.safe_dump(nested, sort_keys=False, allow_unicode=True)
    title = f"# Settings of a run of robustdml {__version__}. To repeat it: robustdml train --config THIS --out FOLDER"
    write_text(path, f"{title}\n{text}")


class SettingsFile(Recorder):
    """Writes the settings of a run when it begins: what is refused leaves no file, and changes none."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._path, self._settings = path, settings

    def start(self, history: Sequence[dict[str, float]], epochs: int) -> None:
        """Write the file."""
        write_settings(self._path, self._settings)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads 1e-3 as a number, which YAML 1.1 does not."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+"), list("-+.0123456789")
)


def _leaves(path: Path, node: yaml.MappingNode, group: str) -> Iterator[tuple[str, Given]]:
    """Names and values in the order of the file, and a complaint about the first key that is there twice."""
    seen: dict[str, int] = {}
    for key, value in node.value:
        name, line = f"{group}{key.value}", key.start_mark.line + 1
        if name in seen:
            raise UsageError(f"{path}, line {line}: {name} is given in line {seen[name]} already")
        seen[name] = line
        if isinstance(value, yaml.MappingNode) and not group:
            yield from _leaves(path, value, f"{name}.")
            continue
        loader = _Loader("")
        try:
            yield name, Given(loader.construct_object(value, deep=True), f"{path}, line {line}: {name}")
        finally:
            loader.dispose()


def _checked(path: Path, leaves: Mapping[str, Given]) -> dict[str, Given]:
    known = all_settings()
    for name, given in leaves.items():
        if name in COMMAND_LINE_ONLY:
            raise UsageError(f"{given.where} is given on the command line, as --{name}, and not in a file")
        if name not in known:
            raise UsageError(f"{given.where}: unknown setting{_nearest(name, known)}")
        complaint = None if given.value is None else known[name].complaint(given.value)
        if complaint is not None:
            raise UsageError(f"{given.where} is {given.value!r}: {complaint}")
    return {name: given for name, given in leaves.items() if given.value is not None}


def _nearest(name: str, known: Mapping[str, Setting]) -> str:
    groups = {setting.group for setting in known.values() if setting.group}
    if name in groups:
        return f": {name} is a group of settings, {', '.join(key for key in known if key.startswith(f'{name}.'))}"
    return did_you_mean(name, [*known, *groups])


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
    own = read_settings(out / CONFIG_FILE) if resume and out is not None and (out / CONFIG_FILE).exists() else {}
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
    return RunSettings(config, data, place, complete_settings(config, given))
