"""``make check-wheels``: opens each wheel, installs it where there is no compiler, and uses it there.

``--torch FOLDER`` names the ``site-packages`` of another PyTorch, such as the oldest that is supported, to use it with;
``--again`` makes source distribution and CPU wheel of the commit once more, elsewhere, and compares the bytes.
"""

import argparse
import hashlib
import json
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

from release import contents, make_wheels
from release.fresh import Fresh

SMOKE = Path(__file__).parent / "smoke.py"
SECONDS = 20  # for installing a wheel that is there, and the doctor
# What the doctor may find of the machine, which is no fault of the wheel.
OF_THE_MACHINE = {"other work", "threads", "speed on cpu", "speed on cuda", "devices"}


def main(argv: Sequence[str]) -> int:
    """Check all wheels in a folder; returns 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m release.check_wheels", description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=make_wheels.ROOT / "dist")
    parser.add_argument("--torch", action="append", type=Path, default=[], metavar="FOLDER")
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args(argv)
    wheels = sorted(given.folder.glob("*.whl"))
    if not wheels:
        sys.exit(f"no wheel in {given.folder}: run make wheels first")
    sites = [Path(torch.__file__).parents[1], *given.torch]
    found = [f"{wheel.name}: {fault}" for wheel in wheels for fault in examine(wheel, sites)]
    if given.again:
        found += differences(given.folder)
    for fault in found:
        print(f"WRONG  {fault}", file=sys.stderr)
    return 1 if found else 0


def examine(wheel: Path, sites: Sequence[Path]) -> Iterator[str]:
    """What is wrong with ``wheel``, inside and in use with the PyTorch of each of ``sites``."""
    print(f"{wheel.name}, {wheel.stat().st_size / 1e6:.2f} MB")
    with tempfile.TemporaryDirectory() as folder:
        yield from contents.faults(wheel, Path(folder))
    if not parse_wheel_filename(wheel.name)[3] & set(sys_tags()):
        print(f"  not used: it is for another Python or platform than {sysconfig.get_platform()}, {sys.version[:4]}")
        return
    for site in sites:
        with tempfile.TemporaryDirectory() as folder:
            yield from used(wheel, Fresh(Path(folder), site))


def used(wheel: Path, fresh: Fresh) -> Iterator[str]:
    """What goes wrong when ``wheel`` is installed into ``fresh`` and used."""
    begin = time.perf_counter()
    # Whatever it asks for beyond PyTorch and NumPy is not there, and there is no index to take it from.
    installed = fresh.run("python", "-m", "pip", "install", "--no-index", wheel.resolve())
    if installed.returncode != 0:
        yield f"pip install: {installed.stdout}{installed.stderr}"
        return
    doctor = fresh.run("python", "-m", "robustdml_ops.doctor", "--json")
    seconds = time.perf_counter() - begin
    try:
        findings = json.loads(doctor.stdout)["findings"]
    except (ValueError, KeyError):
        yield f"robustdml doctor: {doctor.stdout}{doctor.stderr}"
        return
    ill = {one["name"]: one["told"] for one in findings if not one["well"]}
    version = next(one["torch"] for one in findings if one["name"] == "versions")
    told = "".join(f"; {name}: {what}" for name, what in ill.items())
    print(f"  torch {version}: installed and examined in {seconds:.1f} s, doctor exits {doctor.returncode}{told}")
    if set(ill) - OF_THE_MACHINE or doctor.returncode != bool(ill):
        yield f"with torch {version} the doctor exits {doctor.returncode} and finds {ill}"
    if seconds > SECONDS:
        yield f"with torch {version} install and doctor took {seconds:.0f} s, more than {SECONDS}"
    smoke = fresh.run("python", SMOKE)
    if smoke.returncode != 0:
        yield f"with torch {version}: {smoke.stdout}{smoke.stderr}"


def differences(folder: Path) -> Iterator[str]:
    """Files in ``folder`` that a second build of the commit, elsewhere, makes otherwise."""
    with tempfile.TemporaryDirectory() as temporary:
        for again in make_wheels.make(["sdist", "cpu"], "HEAD", Path(temporary)):
            first = folder / again.name
            if not first.exists():
                yield f"a second build makes {again.name}, which is not in {folder}"
            elif digest(first) != digest(again):
                yield f"a second build makes another {again.name}"
            else:
                print(f"{again.name}: the same bytes, sha256 {digest(again)}")


def digest(file: Path) -> str:
    """SHA-256 of the file's bytes."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
