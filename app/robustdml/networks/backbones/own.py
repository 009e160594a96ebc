"""A backbone of the user's own code."""

import importlib
import inspect
import sys
from collections.abc import Callable

from torch import nn

from robustdml.errors import UsageError


def import_backbone(path: str) -> nn.Module:
    """Make a backbone of the user's own: ``package.module:factory``, called without arguments."""
    module_name, _, factory_name = path.partition(":")
    if not module_name or not factory_name:
        raise UsageError(f"backbone {path!r}: expected package.module:factory")
    sys.path.insert(0, "")
    try:
        factory: Callable[[], object] = getattr(importlib.import_module(module_name), factory_name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"backbone {path!r}: {error}") from error
    finally:
        sys.path.remove("")
    backbone = _call(factory, path)
    if isinstance(backbone, type) and issubclass(backbone, nn.Module):
        raise UsageError(f"backbone {path!r}: the factory returned the class {backbone.__name__}, not a module of it")
    if not isinstance(backbone, nn.Module):
        raise UsageError(f"backbone {path!r}: the factory returned {type(backbone).__name__}, not a torch.nn.Module")
    return backbone


def _call(factory: Callable[[], object], path: str) -> object:
    if isinstance(factory, nn.Module) or not callable(factory):
        raise UsageError(
            f"backbone {path!r}: it is a {type(factory).__name__}, and should be a function without arguments that "
            "returns a torch.nn.Module"
        )
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise UsageError(
            f"backbone {path!r}: the factory is called without arguments, and has some that need a value ({error}); "
            "give them defaults, or name a function that calls it with them"
        ) from error
    except ValueError:
        pass  # Some functions written in C do not tell their arguments.
    return factory()
