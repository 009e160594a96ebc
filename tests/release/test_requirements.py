"""What CI installs is pinned by hashes, and is what pyproject.toml asks for, at the versions of constraints.txt."""

import re
import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.subprocesses import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")

AGAIN = "run make requirements"


def pinned(name):
    """The requirements of a file of hashes, and how many hashes each has."""
    text = (ROOT / "requirements" / name).read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            requirement, *hashes = line.split("--hash=")
            one = Requirement(requirement.strip())
            found.setdefault(canonicalize_name(one.name), []).append((one, hashes))
    return found


PINNED = pinned("ci.txt") | pinned("data.txt")
LIBRARY, APPLICATION = (
    tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in (".", "app")
)


def asked(project, *extras):
    """What a project and its extras ask for, including what comes through other extras of the library."""
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    for requirement in map(Requirement, lines):
        if requirement.name == LIBRARY["name"]:
            yield from asked(LIBRARY, *requirement.extras)
        else:
            yield requirement


def test_every_file_has_a_hash():
    assert len(PINNED) > 100
    for entries in PINNED.values():
        for requirement, hashes in entries:
            assert re.fullmatch(r"==[\w.!+]+", str(requirement.specifier)), requirement
            assert hashes and all(re.match(r"sha256:[0-9a-f]{64}\s", f"{one} ") for one in hashes), requirement


def test_all_that_the_tests_ask_for_is_pinned():
    experiments = (ROOT / "requirements" / "experiments.in").read_text().splitlines()[1:]
    of_application = asked(APPLICATION, "vision", "export", "tensorboard")
    for requirement in [*asked(LIBRARY, "dev"), *of_application, *map(Requirement, experiments)]:
        name = canonicalize_name(requirement.name)
        if name == "torch":  # installed apart
            assert name not in PINNED
            continue
        assert name in PINNED, f"{name} is not pinned: {AGAIN}"
        here = [one for one, _ in PINNED[name] if one.marker is None or one.marker.evaluate()]
        assert all(requirement.specifier.contains(str(one.specifier)[2:]) for one in here), f"{requirement}: {AGAIN}"


def test_the_pins_are_those_of_the_constraints():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    constraints = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert len(constraints) > 30
    for constraint in constraints:
        name = canonicalize_name(constraint.name)
        if name == "torch" or (constraint.marker is not None and not constraint.marker.evaluate()):
            continue
        here = [one for one, _ in PINNED[name] if one.marker is None or one.marker.evaluate()]
        assert [one.specifier for one in here] == [constraint.specifier], f"{name}: {AGAIN}"
