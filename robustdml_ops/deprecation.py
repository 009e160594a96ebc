"""How a public function or class is deprecated: it works on, and warns."""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

Named = TypeVar("Named", bound=Callable[..., Any])


def deprecated(since: str, removed_in: str, instead: str) -> Callable[[Named], Named]:
    """Decorator of a function or class that goes.

    A call works as before, and warns with a ``FutureWarning``, which Python shows once for each line of the caller.

    Parameters
    ----------
    since, removed_in : str
        Versions: the first that warns, and the first without it.
    instead : str
        What to take instead, as in ``"losses.ArcFaceLoss"``.

    Examples
    --------
    >>> from robustdml_ops.deprecation import deprecated
    >>> @deprecated("0.2", "0.3", "new_name")
    ... def old_name(x):
    ...     return x
    """

    def decorate(named: Named) -> Named:
        message = f"{named.__name__} is deprecated since {since} and goes in {removed_in}: take {instead}"
        called: Any = named.__init__ if inspect.isclass(named) else named

        @functools.wraps(called)
        def warning(*arguments: Any, **named_arguments: Any) -> Any:
            warnings.warn(message, FutureWarning, stacklevel=2)
            return called(*arguments, **named_arguments)

        if not inspect.isclass(named):
            return warning  # type: ignore[return-value]
        setattr(named, "__init__", warning)  # noqa: B010  # mypy forbids an assignment to a method
        return named

    return decorate
