"""Groups of settings: frozen dataclasses that belong to a method or a filter, and carry their text for ``--help``."""

from dataclasses import Field, asdict, dataclass, field, fields
from typing import Any, ClassVar, TypeVar, cast

from robustdml.errors import UsageError


def option(
    default: Any,
    text: str,
    *,
    choices: tuple[str, ...] | None = None,
    kind: type | None = None,
    at_least: float | None = None,
    positive: bool = False,
) -> Any:
    """Declare a field of a group of settings."""
    metadata = {"text": text, "choices": choices, "kind": kind or type(default)}
    return field(default=default, metadata=metadata | {"at_least": at_least, "positive": positive})


class Options:
    """A group of settings. A subclass is a frozen dataclass of `option` fields, and names itself where it is declared.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class TripletOptions(Options, name="triplet"):
    ...     margin: float = option(0.2, "between the two distances", at_least=0)
    >>> TripletOptions(margin=-1.0).check()
    Traceback (most recent call last):
    robustdml.errors.UsageError: triplet.margin=-1.0: expected at least 0
    """

    name: ClassVar[str]

    def __init_subclass__(cls, name: str) -> None:
        # ``--triplet-margin`` on the command line, ``{"triplet": {"margin": …}}`` in what is stored.
        cls.name = name

    @classmethod
    def settings(cls) -> tuple[Field[Any], ...]:
        """List the fields, each made by `option`."""
        return fields(cast(Any, cls))

    def check(self) -> None:
        """Refuse values out of bounds."""
        for setting in self.settings():
            bounds = {name: setting.metadata[name] for name in ("at_least", "positive")}
            check_bounds(f"{self.name}.{setting.name}", getattr(self, setting.name), **bounds)

    def as_dict(self) -> dict[str, Any]:
        """Give the settings by name."""
        return asdict(cast(Any, self))


def check_bounds(name: str, value: float | None, *, at_least: float | None = None, positive: bool = False) -> None:
    """Refuse a setting out of bounds; None is within all."""
    if value is None:
        return
    if at_least is not None and not value >= at_least:
        raise UsageError(f"{name}={value}: expected at least {at_least:g}")
    if positive and not value > 0:
        raise UsageError(f"{name}={value}: expected a positive number")


Group = TypeVar("Group", bound=Options)


@dataclass(frozen=True, init=False)
class OptionSet:
    """The settings of all methods: groups that were given, and the defaults of all others.

    Examples
    --------
    >>> from robustdml.methods.anchors import AnchorOptions, SmoothOptions
    >>> options = OptionSet(AnchorOptions(alpha=16.0))
    >>> options[AnchorOptions].alpha, options[SmoothOptions].beta
    (16.0, 100.0)
    """

    groups: tuple[Options, ...]

    def __init__(self, *groups: Options) -> None:
        kinds = [type(group) for group in groups]
        for kind in kinds:
            if kinds.count(kind) > 1:
                raise UsageError(f"{kind.__name__} is given {kinds.count(kind)} times: expected one group of a kind")
        # Sets that say the same are equal: defaults are left out, the order is that of the names.
        changed = (group for group in groups if group != type(group)())
        object.__setattr__(self, "groups", tuple(sorted(changed, key=lambda group: group.name)))

    def __getitem__(self, kind: type[Group]) -> Group:
        return next((group for group in self.groups if isinstance(group, kind)), kind())
