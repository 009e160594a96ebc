"""The application's fixtures, and its command line with the experiments' commands, data sets and noises."""

import os

import pytest

import experiments.__main__  # noqa: F401  (adds commands, data sets and noises)
from app.tests.conftest import cache_of_the_session, clusters, features, noisy, own_cache, tiny_images  # noqa: F401
from tests.subprocesses import ROOT


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Processes that a test starts find the experiments, which are installed nowhere, from its own folder."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'app'}")
