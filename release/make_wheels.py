"""``make wheels``: the source distribution and the wheels of a commit, for the Python at hand.

Everything is made of the commit, in a folder of its own: what lies in the working tree and is in no commit is not in
it. Two runs for one commit, wherever they run, give the same bytes from the same compilers.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from release import archives
from release.repair import repair
from release.tools import search_path

ROOT = Path(__file__).parents[1]
# All cards since 2020, and PTX of the newest for those to come.
ARCHITECTURES = "8.0 8.6 8.9 9.0 10.0 12.0+PTX"
KINDS = ("sdist", "cpu", "cuda", "app")


def main(argv: Sequence[str]) -> None:
    """Make what is asked for and print where it is."""
    parser = argparse.ArgumentParser(prog="python -m release.make_wheels", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=KINDS, help="one of them; may be given several times")
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    given = parser.parse_args(argv)
    kinds = given.only or [kind for kind in KINDS if kind != "cuda" or has_nvcc()]
    if not given.only and "cuda" not in kinds:
        print("no nvcc: no wheel with CUDA (put it on PATH, or set CUDACXX or CUDA_HOME)", file=sys.stderr)
    for file in make(kinds, given.commit, given.out):
        print(f"{file}  {file.stat().st_size / 1e6:.2f} MB")


def make(kinds: Sequence[str], commit: str, out: Path) -> list[Path]:
    """Make ``kinds`` of ``commit`` in ``out``; returns their paths."""
    changed = git("status", "--porcelain", "--untracked-files=no") if commit == "HEAD" else ""
    if changed:
        sys.exit(f"wheels are made of a commit, and these files have changes that are in none:\n{changed}")
    epoch = int(git("log", "-1", "--format=%ct", commit))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tree = folder / "tree"
        tree.mkdir()
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
        made = []
        if set(kinds) - {"app"}:
            source = sdist(tree, epoch, folder)
            made += [archives.publish(source, out)] if "sdist" in kinds else []
            made += [wheel(source, kind, epoch, out) for kind in kinds if kind in ("cpu", "cuda")]
        if "app" in kinds:
            made.append(application(tree, epoch, folder, out))
        return made


def sdist(tree: Path, epoch: int, folder: Path) -> Path:
    """The library's source distribution, in ``folder``."""
    build("sdist", tree, epoch, folder)
    (made,) = folder.glob("*.tar.gz")
    archives.rewrite_sdist(made, epoch)
    return made


def wheel(source: Path, kind: str, epoch: int, out: Path) -> Path:
    """The library's wheel, "cpu" or "cuda", in ``out``, from a source distribution, so that a missing file is found."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with tarfile.open(source) as files:
            files.extractall(folder, filter="data")
        (tree,) = folder.iterdir()
        build("wheel", tree, epoch, folder, **settings(kind))
        (made,) = folder.glob("*.whl")
        return repair(made, out, epoch)


def application(tree: Path, epoch: int, folder: Path, out: Path) -> Path:
    """The application's wheel, pure Python, in ``out``."""
    build("wheel", tree / "app", epoch, folder)
    (made,) = folder.glob("robustdml-*.whl")
    archives.rewrite_wheel(made, epoch, {})
    return archives.publish(made, out)


def build(what: str, tree: Path, epoch: int, folder: Path, **changes: str) -> None:
    """Build the "wheel" or "sdist" of ``tree`` in ``folder`` by setuptools."""
    backend = f"import sys; from setuptools import build_meta; build_meta.build_{what}(sys.argv[1])"
    run([sys.executable, "-c", backend, str(folder)], tree, epoch, **changes)


def settings(kind: str) -> dict[str, str]:
    """What setup.py reads for a wheel of this kind."""
    always = {"ROBUSTDML_REQUIRE_NATIVE": "1", "ROBUSTDML_LABEL": "1", "CMAKE_BUILD_TYPE": "Release"}
    if kind == "cpu":
        return always | {"ROBUSTDML_CUDA": "OFF"}
    return always | {"ROBUSTDML_CUDA": "ON", "TORCH_CUDA_ARCH_LIST": ARCHITECTURES}


def has_nvcc() -> bool:
    """Whether setup.py finds CUDA's compiler."""
    asked = subprocess.run(
        [sys.executable, "setup.py", "--version"], cwd=ROOT, env=os.environ | settings("cuda"), capture_output=True
    )
    return asked.returncode == 0


def run(command: Sequence[str], folder: Path, epoch: int, **changes: str) -> None:
    """Run a step of a build in ``folder``, with the tools of this Python first and nothing of the caller's settings."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ROBUSTDML_", "TORCH_CUDA_"))}
    fixed = {"PATH": search_path(), "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        command, cwd=folder, env=kept | fixed | changes, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout.decode(errors='replace')[-20000:]}\nthat was {' '.join(command)} in {folder}")


def git(*arguments: str) -> str:
    """What git says."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


if __name__ == "__main__":
    main(sys.argv[1:])
