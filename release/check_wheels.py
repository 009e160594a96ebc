"""``make check-wheels``: opens each wheel, installs it where there is no compiler, and uses it there.

The library's is used with PyTorch alone, the application's beside it.

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
import zipfile
from collections.abc import Iterator, Sequence
from email import message_from_string
from pathlib import Path

import torch
from packaging.requirements import Requirement
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
    for wheel in filter(contents.is_application, wheels):
        library = next((one for one in wheels if not contents.is_application(one) and fits(one)), None)
        found += [f"{wheel.name}: {fault}" for fault in application(wheel, library, sites[0])]
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
    if contents.is_application(wheel):
        return
    if not fits(wheel):
        print(f"  not used: it is for another Python or platform than {sysconfig.get_platform()}, {sys.version[:4]}")
        return
    for site in sites:
        with tempfile.TemporaryDirectory() as folder:
            yield from used(wheel, Fresh(Path(folder), site))


def fits(wheel: Path) -> bool:
    """Whether this Python on this machine takes ``wheel``."""
    return bool(parse_wheel_filename(wheel.name)[3] & set(sys_tags()))


def application(wheel: Path, library: Path | None, site: Path) -> Iterator[str]:
    """Faults of the application's ``wheel`` in use beside the ``library``, with its dependencies from ``site``."""
    if library is None:
        yield "no wheel of the library for this machine is beside it"
        return
    with zipfile.ZipFile(wheel) as archive:
        files = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in files if name.endswith(".dist-info/METADATA"))
    asked = [Requirement(line) for line in message_from_string(metadata).get_all("Requires-Dist", [])]
    more = [
        one.name
        for one in asked
        if one.name != "robustdml_ops" and (one.marker is None or one.marker.evaluate({"extra": ""}))
    ]
    with tempfile.TemporaryDirectory() as folder:
        fresh = Fresh(Path(folder), site, more)
        train = ["robustdml", "train", "--epochs", "1", "--method", "proxy-anchor", "--out", "run"]
        audit = ["robustdml", "audit", "glyphs", "--epochs", "1", "--out", "audit"]
        install = ["python", "-m", "pip", "install", "--no-index", "--no-deps", library.resolve(), wheel.resolve()]
        for command in (install, ["robustdml", "--help"], train, audit):
            done = fresh.run(*command)
            if done.returncode != 0:
                yield f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}"
                return
    print("  the application trains and audits Glyphs for an epoch each")


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
    faulty = any(one["severity"] == "fault" for one in findings)
    ill = {one["name"]: one["told"] for one in findings if one["severity"] != "ok"}
    version = next(one["torch"] for one in findings if one["name"] == "versions")
    told = "".join(f"; {name}: {what}" for name, what in ill.items())
    print(f"  torch {version}: installed and examined in {seconds:.1f} s, doctor exits {doctor.returncode}{told}")
    if set(ill) - OF_THE_MACHINE or doctor.returncode != faulty:
        yield f"with torch {version} the doctor exits {doctor.returncode} and finds {ill}"
    if seconds > SECONDS:
        yield f"with torch {version} install and doctor took {seconds:.0f} s, more than {SECONDS}"
    smoke = fresh.run("python", SMOKE)
    if smoke.returncode != 0:
        yield f"with torch {version}: {smoke.stdout}{smoke.stderr}"


def differences(folder: Path) -> Iterator[str]:
    """Files in ``folder`` that a second build of the commit, elsewhere, makes otherwise."""
    with tempfile.TemporaryDirectory() as temporary:
        for again in make_wheels.make(["sdist", "cpu", "app"], "HEAD", Path(temporary)):
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
