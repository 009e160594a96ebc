"""The settings of a run, from the command line and from ``config.yaml``, which a person can read and change."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from robustdml.cache import write_text
from robustdml.config import CORRECT, RANDOM, UNTRAINED, TrainingConfig
from robustdml.data.joined import FEATURES_TEXT
from robustdml.data.lists import COLUMN_TEXTS, PATTERN_TEXT
from robustdml.data.load import expected_data
from robustdml.data.named import NAMED
from robustdml.errors import UnknownNameError, UsageError, did_you_mean
from robustdml.filters.options import FILTERS, KINDS, NO_FILTER, FilterOptions
from robustdml.methods import METHODS, option_groups
from robustdml.methods.classes import AdaptiveOptions, NegativeOptions
from robustdml.methods.pairs import MultiSimilarityOptions, ProcSimOptions
from robustdml.networks.backbones.choice import is_own_code
from robustdml.noise import NOISES, parse_noise
from robustdml.options import Group, Options, OptionSet, Setting, option
from robustdml.plain_files import check_plain
from robustdml.progress import Recorder
from robustdml_ops import __version__
from robustdml_ops.robust import PRISM

CONFIG_FILE = "config.yaml"
# They say what to do with the settings, and are none.
COMMAND_LINE_ONLY = ("config", "out", "resume")
# Settings that a checkpoint does not hold: it has the name and the sizes of the data.
SPLIT_SETTINGS = ("test_fraction", "split_seed", "noise")
DEFAULTS = TrainingConfig()
CONFIG_FIELDS = tuple(setting.name for setting in TrainingConfig.settings())
# Settings that have no effect unless another one is given.
NEEDED_BY = {
    "labels_use": ("labels", "without the labels of an audit, labels FILE"),
    "labels_confidence": ("labels", "without the labels of an audit, labels FILE"),
    "augment": ("finetune", "on frozen features, without finetune"),
    "backbone_learning_rate": ("finetune", "on frozen features, without finetune"),
}


@dataclass(frozen=True)
class DataSettings(Options):
    """Data."""

    data: str = option("glyphs", expected_data, heading="data")
    noise: str = option(
        "none",
        lambda: (
            f"training labels to make wrong, to try things out: none, {', '.join(f'{kind}:RATE' for kind in NOISES)}"
        ),
    )
    image_size: int | None = option(None, "side in pixels of images of files (default: the backbone's)", at_least=1)
    test_fraction: float = option(0.5, "fraction of the classes to test on; 0 trains on all, and tests on them")
    split_seed: int = option(0, "seed of the choice of test classes", at_least=0)
    skip_broken: bool = option(False, "leave out images that cannot be read and rows without path or label")
    path_column: str = option("", COLUMN_TEXTS["path"], metavar="NAME")
    label_column: str = option("", COLUMN_TEXTS["label"], metavar="NAME")
    split_column: str = option("", COLUMN_TEXTS["split"], metavar="NAME")
    label_pattern: str = option("", PATTERN_TEXT, metavar="REGEX")
    features: str = option("", FEATURES_TEXT, metavar="FILE")


@dataclass(frozen=True)
class PlaceSettings(Options):
    """Settings of the device and of the files that are written."""

    device: str = option("auto", "auto, cpu, cuda, …", heading="where")
    logger: str = option("none", "tensorboard: event files in OUT/tensorboard", choices=("none", "tensorboard"))


@dataclass(frozen=True)
class RunSettings:
    """All that is set of a run."""

    config: TrainingConfig
    data: DataSettings
    place: PlaceSettings
    complete: dict[str, Any]  # Every setting that has an effect, for ``config.yaml``


@dataclass(frozen=True)
class Given:
    """A setting that somebody gave."""

    value: Any  # Its value
    where: str  # The option, or the file with line and key: for messages


def all_settings() -> dict[str, Setting]:
    """List the settings of ``robustdml train`` by name, including those of all registered methods."""
    groups: list[type[Options]] = [DataSettings, TrainingConfig, PlaceSettings, *option_groups()]
    declared = [group.settings() for group in groups]
    # A setting of the filter that is not given is the one that the method asks for.
    declared.append([replace(setting, default=None) for setting in FilterOptions.settings()])
    return {setting.name: setting for group in declared for setting in group}


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
        _refuse(given, _data_without_effect(data.data))
    except UsageError as error:
        if file is None:
            raise
        raise UsageError(f"{error} (settings of {file} and of the command line)") from error
    return RunSettings(config, data, place, complete_settings(config, given))


def read_settings(path: Path) -> dict[str, Given]:
    """Read what a file sets."""
    if not path.exists():
        raise UsageError(f"{path}: no such file; --out FOLDER of an earlier run holds one, {CONFIG_FILE}")
    check_plain(path, "file of settings")
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), _Loader)
        if not isinstance(node, yaml.MappingNode):
            raise UsageError(f"{path}: expected settings, such as `epochs: 30`")
        return _checked(path, dict(_leaves(path, node, "")))
    except RecursionError as error:
        raise UsageError(f"{path}: not readable as YAML (it is nested too deeply)") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise UsageError(f"{path}{where}: not readable as YAML ({getattr(error, 'problem', error)})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a text in UTF-8 ({error})") from error


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


def merge(command: Mapping[str, Given], file: Mapping[str, Given]) -> dict[str, Given]:
    """Let the command line override a file; drop settings of a method or filter that it has replaced."""
    left_out: set[str] = set()
    before, after = value_of(file, "method"), value_of({**file, **command}, "method")
    if before != after and before in METHODS and after in METHODS:
        left_out |= {f"{group.name}." for group in METHODS[before].options if group not in METHODS[after].options}
        if _filter(before, file) in (METHODS[before].filter, FilterOptions()):
            left_out.add(f"{FilterOptions.name}.")
    kept = {name: given for name, given in file.items() if f"{name.rpartition('.')[0]}." not in left_out}
    merged = {**kept, **command}
    # No filter, and the one called audit, have no settings of their own.
    if after in METHODS and _filter(after, merged).kind not in (*FILTERS, _filter(before, file).kind):
        gone = {name for name in kept if name == "noise_rate" or name.startswith(f"{FilterOptions.name}.")}
        merged = {name: given for name, given in merged.items() if name in command or name not in gone}
    return merged


def make_config(given: Mapping[str, Given]) -> TrainingConfig:
    """Make the configuration, and refuse settings that would have no effect."""
    method = value_of(given, "method")
    if method not in METHODS:
        raise UnknownNameError("method", method, METHODS)
    groups = {FilterOptions.name, *(group.name for group in METHODS[method].options)}
    values: dict[str, dict[str, Any]] = {}
    for name, setting in given.items():
        group, _, key = name.rpartition(".")
        if group and group not in groups:
            names = [name for name, other in METHODS.items() if any(own.name == group for own in other.options)]
            having = f"method{'s' if len(names) > 1 else ''} {', '.join(names)}"
            raise UsageError(f"{setting.where} has no effect on method {method}: it is a setting of {having}")
        values.setdefault(group, {})[key] = setting.value
    # What is not given of a filter is what the method asks for.
    filtered = _filter(method, given)
    if filtered.kind == NO_FILTER:
        _refuse_settings_of_no_filter(method, given)
    for name, (needed, without) in NEEDED_BY.items():
        if value_of(given, name) != getattr(DEFAULTS, name) and not value_of(given, needed):
            raise UsageError(f"{given[name].where} has no effect {without}")
    if value_of(given, "labels_confidence") != DEFAULTS.labels_confidence and value_of(given, "labels_use") != CORRECT:
        raise UsageError(f"{given['labels_confidence'].where} has no effect without labels_use {CORRECT}")
    plain = {name: value for name, value in values.get("", {}).items() if name in CONFIG_FIELDS}
    chosen = (group(**values[group.name]) for group in option_groups() if group.name in values)
    config = TrainingConfig(**plain, options=OptionSet(*chosen), filter=filtered)
    asked = _filter(method, {name: setting for name, setting in given.items() if name == "filter.kind"}).as_dict()
    _refuse(given, _without_effect(config), {f"{FilterOptions.name}.{key}": value for key, value in asked.items()})
    if config.needs_noise_rate and config.noise_rate is None and value_of(given, "noise") == "none":
        raise UsageError(
            f"filter {filtered.kind} with threshold {filtered.threshold} rejects a share of the samples, and without "
            "noise_rate rejects none: give noise_rate, or take prism-vmf with the threshold cautious"
        )
    return config


def _refuse(given: Mapping[str, Given], without_effect: dict[str, str], defaults: Mapping[str, Any] = {}) -> None:
    """Refuse a setting that has no effect, for the reason there, unless it has its default."""
    for name, why in without_effect.items():
        if name in given and given[name].value != defaults.get(name, all_settings()[name].default):
            raise UsageError(f"{given[name].where} has no effect {why}")


def _data_without_effect(data: str) -> dict[str, str]:
    """Settings of the data that this source does not use, with the reason."""
    found: dict[str, str] = {}
    if data in NAMED:
        found |= dict.fromkeys(("test_fraction", "split_seed"), f"on {data}, whose test classes are fixed")
    if data in NAMED or data.lower().endswith(".npz"):
        names = ("image_size", "skip_broken", "path_column", "label_column", "split_column")
        found |= dict.fromkeys(names, f"on {data}, which is no folder or list of images")
    return found


def _without_effect(config: TrainingConfig) -> dict[str, str]:
    """Settings that this configuration does not use, with the reason."""
    method, chosen, own = METHODS[config.method], config.filter_options, config.options
    found: dict[str, str] = {}
    if config.backbone == UNTRAINED or is_own_code(config.backbone):
        found["augment"] = f"on backbone {config.backbone}, whose images are taken as they are"
    # The proxies of ProcSim are within.
    losses = [METHODS[name] for name in method.losses or (config.method,)]
    if config.method != "procsim" and all(loss.proxies is None or loss.proxy_radians for loss in losses):
        found["proxy_learning_rate"] = f"on method {config.method}, whose loss has no proxies, or a rate of its own"
    if own[NegativeOptions].share == 1:
        found["softmax.correct_negatives"] = "where all classes count, without a negative.share below 1"
    if not own[AdaptiveOptions].per_class:
        found["adaptive.negative_margin"] = "where all classes have one margin, without adaptive.per_class"
    if config.method == "superloss":
        found["contrastive.distance"] = "on method superloss, which compares Euclidean distances"
    procsim = own[ProcSimOptions]
    if config.method == "procsim" and procsim.dml != "multi-similarity":
        without = "without procsim.dml multi-similarity"
        found |= dict.fromkeys((setting.name for setting in MultiSimilarityOptions.settings()), without)
    if config.method == "procsim" and "proxy-nca" not in (procsim.dml, procsim.detector):
        found["proxy_nca.softmax_scale"] = "without procsim.dml or procsim.detector proxy-nca"
    if FILTERS.get(chosen.kind) in PRISM.SIMILARITIES_WITH_BANK:
        found["mcl.memory_size"] = f"beside filter {chosen.kind}, whose memory the loss takes: give filter.memory_size"
    if chosen.on_trial and not (config.chooses_averaging or method.filter.on_trial):
        found["filter.on_trial"] = "without trials, which choose the averaging of method robust"
    if chosen.kind != "prism-vmf":
        found["filter.vmf_epochs"] = f"on filter {chosen.kind}"
    elif config.layer_start != RANDOM:
        found["filter.vmf_epochs"] = f"with start {config.layer_start}, from which the memory is filled at once"
    if chosen.threshold in ("fixed", "top-r"):
        found["filter.window"] = f"on the threshold {chosen.threshold}, which looks at one batch"
    return found


def _refuse_settings_of_no_filter(method: str, given: Mapping[str, Given]) -> None:
    of_filter = (g for name, g in given.items() if name.startswith(f"{FilterOptions.name}.") and g.value != NO_FILTER)
    useless = next(of_filter, given.get("noise_rate"))
    if useless is None:
        return
    if not METHODS[method].takes_filter:
        raise UsageError(f"{useless.where} is for a filter, and method {method} takes none: it weighs samples itself")
    having = ", ".join(name for name, other in METHODS.items() if other.filter.kind != NO_FILTER)
    raise UsageError(
        f"{useless.where} is for a filter, and there is none here: choose one, filter {' or '.join(KINDS[1:])}; "
        f"or a method that has one by itself: {having}"
    )


def complete_settings(config: TrainingConfig, given: Mapping[str, Given]) -> dict[str, Any]:
    """Spell out every setting that has an effect, given or not, for `make_config` to make the same of it."""
    groups = {group.name: config.options[group].as_dict() for group in METHODS[config.method].options}
    chosen = config.filter_options
    groups[FilterOptions.name] = chosen.as_dict() if chosen.kind in FILTERS else {"kind": chosen.kind}
    settings: dict[str, Any] = {}
    for name, setting in all_settings().items():
        key = name.rpartition(".")[2]
        if not setting.group:
            settings[name] = getattr(config, name) if name in CONFIG_FIELDS else value_of(given, name)
        elif key in groups.get(setting.group, {}):
            settings[name] = groups[setting.group][key]
    return settings


def make_group(kind: type[Group], given: Mapping[str, Given]) -> Group:
    """Make a group of settings that are not of the configuration."""
    group = kind(**{setting.name: value_of(given, setting.name) for setting in kind.settings()})
    group.check()
    return group


def value_of(given: Mapping[str, Given], name: str) -> Any:
    """Value of a setting, or its default."""
    return given[name].value if name in given else all_settings()[name].default


def _filter(method: str, given: Mapping[str, Given]) -> FilterOptions:
    """Combine the filter settings given with the method's defaults."""
    own = {name.partition(".")[2]: g.value for name, g in given.items() if name.startswith(f"{FilterOptions.name}.")}
    base = METHODS[method].filter
    if "kind" in own:
        # Who names a filter gets that one.
        base = FilterOptions() if own["kind"] not in FILTERS else replace(base, on_trial=False)
    return replace(base, **own)


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
    """Writes the settings of a run when it begins, so that refused settings leave no file and change none."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._path, self._settings = path, settings

    def start(self, history: Sequence[dict[str, float]], epochs: int) -> None:
        """Write the file."""
        write_settings(self._path, self._settings)
