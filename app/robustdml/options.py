"""Settings, each declared once: command line, YAML file, checks and configuration follow from the declaration."""

import math
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, TypeVar, cast, get_args, get_type_hints

from robustdml.errors import UnknownNameError, UsageError, did_you_mean

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text, in quotes if need be"}


def option(default: Any, text: str | Callable[[], str], **declared: Any) -> Any:
    """Declare a field of a group of settings by its default, its text for ``--help``, and what `Setting` takes."""
    return field(default=default, metadata={"text": text, **declared})


@dataclass(frozen=True)
class Setting:
    """A setting."""

    name: str  # As in a file: `epochs`, or with its group `filter.window`
    kind: type  # Of its values
    text: str  # For `--help`
    heading: str  # Of its section in `--help`
    default: Any = None  # None where the text names the default, or the method sets it
    choices: Collection[str] | None = None  # All its values
    metavar: str | None = None  # Name of its value in `--help`
    at_least: float | None = None
    at_most: float | None = None
    positive: bool = False

    @property
    def flag(self) -> str:
        """Its option on the command line."""
        return "--" + self._short_name.replace(".", "-").replace("_", "-")

    @property
    def _short_name(self) -> str:
        # The setting that chooses among kinds has the name of its group: --filter.
        return self.name.removesuffix(".kind")

    @property
    def group(self) -> str:
        """Name of its group, empty without one."""
        return self.name.rpartition(".")[0]

    def complaint(self, value: object) -> str | None:
        """Say why a value from a file is of the wrong type, or none of the choices."""
        if self.choices is not None and value not in self.choices:
            close = did_you_mean(value, self.choices) if isinstance(value, str) else ""
            return f"expected one of {', '.join(self.choices)}{close}"
        kinds: tuple[type, ...] = (int, float) if self.kind is float else (self.kind,)
        # To Python True is a number.
        if not isinstance(value, kinds) or (isinstance(value, bool) and self.kind is not bool):
            return f"expected {_KINDS[self.kind]}"
        return None

    def check(self, value: Any) -> None:
        """Refuse a value out of bounds; None is within all."""
        if value is None:
            return
        if self.choices is not None and value not in self.choices:
            raise UnknownNameError(self._short_name, str(value), self.choices)
        low, high = self.at_least, self.at_most
        if low is not None and not low <= value <= (math.inf if high is None else high):
            expected = f"at least {low:g}" if high is None else f"{low:g} to {high:g}"
            raise UsageError(f"{self.name}={value}: expected {expected}")
        if self.positive and not value > 0:
            raise UsageError(f"{self.name}={value}: expected a positive number")


class Options:
    """A group of settings: a subclass is a frozen dataclass of `option` fields, and gives its name as ``name=``."""

    # ``--triplet-margin`` on the command line, ``{"triplet": {"margin": …}}`` in what is stored; empty for no group.
    name: ClassVar[str]

    def __init_subclass__(cls, name: str = "") -> None:
        cls.name = name

    @classmethod
    def settings(cls) -> list[Setting]:
        """List the settings in the order of their fields."""
        prefix = f"{cls.name}." if cls.name else ""
        heading = (cls.__doc__ or cls.name).partition("\n")[0].rstrip(".")
        hints, found = get_type_hints(cls), []
        for one in fields(cast(Any, cls)):
            if not one.metadata:
                continue
            heading, text, hint = one.metadata.get("heading", heading), one.metadata["text"], hints[one.name]
            declared = {**one.metadata, "heading": heading, "text": text() if callable(text) else text}
            # float of ``float | None``
            kind = (get_args(hint) or (hint,))[0]
            found.append(Setting(prefix + one.name, kind, default=one.default, **declared))
        return found

    def check(self) -> None:
        """Refuse values out of bounds."""
        for setting in self.settings():
            setting.check(getattr(self, setting.name.rpartition(".")[2]))

    def as_dict(self) -> dict[str, Any]:
        """Give the settings by name."""
        return asdict(cast(Any, self))


Group = TypeVar("Group", bound=Options)


@dataclass(frozen=True, init=False)
class OptionSet:
    """The groups of settings that were given; defaults stand for all others."""

    groups: tuple[Options, ...]

    def __init__(self, *groups: Options) -> None:
        kinds = [type(group) for group in groups]
        for kind in kinds:
            if kinds.count(kind) > 1:
                raise UsageError(f"{kind.__name__} is given {kinds.count(kind)} times: expected one group of a kind")
        # Equal sets compare equal: defaults are left out, and groups are sorted by name.
        changed = (group for group in groups if group != type(group)())
        object.__setattr__(self, "groups", tuple(sorted(changed, key=lambda group: group.name)))

    def __getitem__(self, kind: type[Group]) -> Group:
        return next((group for group in self.groups if isinstance(group, kind)), kind())
