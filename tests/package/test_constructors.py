"""Every argument of a loss stands in its own signature and docstring."""

import inspect
import re
from pathlib import Path
from typing import get_type_hints

import pytest

from release.constructors import written
from robustdml_ops import losses
from robustdml_ops.losses.options import Option

NAMES = [name for name in losses.__all__ if name.endswith("Loss")]
OF_FAMILIES = [name for name in NAMES if "unknown" in inspect.signature(getattr(losses, name)).parameters]
ROOT = Path(losses.__file__).parent


def documented(kind):
    """Names in the parameters of a docstring, of which one line may have several."""
    text = re.search(r"\nParameters\n-+\n(.*?)(\n\n|\Z)", inspect.getdoc(kind), re.DOTALL)[1]
    lines = [line for line in text.splitlines() if not line.startswith(" ")]
    return {name.strip().lstrip("*") for line in lines for name in line.split(" : ")[0].split(",")}


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.py")), ids=lambda path: path.stem)
def test_the_shared_arguments_are_as_their_table_has_them(path):
    assert written(path.read_text()) == path.read_text(), "run: python -m release.constructors"


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_has_the_arguments_of_the_signature(name):
    kind = getattr(losses, name)
    parameters = inspect.signature(kind).parameters
    assert documented(kind) == parameters.keys()
    assert not any(str(parameter).startswith(("*args", "**options")) for parameter in parameters.values())
    assert "As in" not in kind.__doc__


@pytest.mark.parametrize("name", OF_FAMILIES)
def test_a_loss_takes_all_arguments_of_its_family(name):
    kind = getattr(losses, name)
    assert kind.known_options.__annotations__.keys() <= inspect.signature(kind).parameters.keys()
    with pytest.raises(TypeError, match=f"{name} has no argument 'no_such'"):
        kind(**dict.fromkeys(required(kind), 4), no_such=1)


@pytest.mark.parametrize("name", OF_FAMILIES)
def test_defaults_are_those_of_the_base_classes(name):
    kind, hints = getattr(losses, name), {}
    for key, hint in get_type_hints(getattr(losses, name).known_options, include_extras=True).items():
        hints[key] = next((extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Option)), None)
    for base in kind.__mro__[1:]:
        if not base.__module__.startswith("robustdml_ops") or "__init__" not in vars(base):
            continue
        for key, parameter in inspect.signature(base.__init__).parameters.items():
            if hints.get(key) is not None and parameter.default is not inspect.Parameter.empty:
                assert parameter.default == hints[key].default, (base, key)


def test_what_is_given_arrives():
    given = {"ignore_index": 3, "negative_share": 0.5, "drop_similar_negatives": 0.5, "negative_correction": False}
    loss = losses.ArcFaceLoss(9, 4, reduction="none", backend="eager", **given)
    assert {key: getattr(loss, key) for key in given} == given
    assert (loss.reduction, loss.backend) == ("none", "eager")


def required(kind):
    parameters = inspect.signature(kind).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
