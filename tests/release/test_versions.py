"""The version stands in one place; what tells builds apart is added to it."""

import re

from packaging.version import Version

import robustdml_ops
from release.make_wheels import settings
from tests.subprocesses import ROOT, run_build


def stated(**changes):
    """What setup.py gives as the version."""
    found = run_build("setup.py", "--version", **changes)
    return found.stdout.strip() or found.stderr


def test_the_build_asks_the_package():
    assert stated() == robustdml_ops.__version__
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()


def test_a_build_for_the_cpu_says_so():
    label = stated(**settings("cpu"))
    assert label == f"{robustdml_ops.__version__}+cpu"
    # The public version, for whoever asks for one, takes either build.
    assert Version(label) > Version(robustdml_ops.__version__)


def test_a_build_with_cuda_names_the_toolkit(tmp_path):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text('#!/bin/sh\necho "Cuda compilation tools, release 12.9, V12.9.86"\n')
    nvcc.chmod(0o755)
    assert stated(**settings("cuda"), CUDACXX=str(nvcc)) == f"{robustdml_ops.__version__}+cu129"
    # Where both are offered, pip takes the one that serves cards and CPU.
    assert Version("0.1.0+cu129") > Version("0.1.0+cpu")


def test_the_changelog_begins_with_this_version():
    newest = re.search(r"^## \[(.+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert newest == robustdml_ops.__version__
