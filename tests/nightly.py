"""Cases of a parametrised test that the short suite leaves out."""

from collections.abc import Iterable
from typing import Any

import pytest


def nightly_but(short: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """All ``cases`` of one parameter; those that are not among ``short`` are marked nightly."""
    short = list(short)
    return [case if case in short else pytest.param(case, marks=pytest.mark.nightly) for case in cases]
