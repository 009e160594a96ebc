"""Faults of a wheel in its files, its metadata and its native module."""

import csv
import hashlib
import re
import zipfile
from base64 import urlsafe_b64encode
from email import message_from_bytes
from pathlib import Path

from packaging.utils import parse_wheel_filename

from release import binary, sbom
from release.archives import dist_info

LARGEST = 15_000_000  # bytes
# The native module may need the C and C++ libraries, and the OpenMP library that PyTorch has loaded before.
LIBRARIES = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "libgomp.so.1", "ld-linux-x86-64.so.2"}
LIBRARIES |= {"libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-aarch64.so.1"}
# Each card's own code, PTX of the newest.
CARDS = {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "compute_120"}


def faults(wheel: Path, folder: Path) -> list[str]:
    """The faults of ``wheel``, a line each; its native module is written to ``folder``."""
    with zipfile.ZipFile(wheel) as archive:
        files = {one.filename: archive.read(one) for one in archive.infolist()}
    info = dist_info(files)
    found = _of_files(wheel, files, info) + _of_metadata(wheel, files, info)
    if is_application(wheel):
        return found + _of_application(files, info)
    found += _of_library(wheel, files, info)
    modules = [name for name in files if re.search(r"\.so(\.|$)", name)]
    if len(modules) != 1 or not re.fullmatch(r"robustdml_ops/_native\.[\w-]+\.so", modules[0]):
        return [*found, f"expected the native module and no other library, has {modules}"]
    module = folder / Path(modules[0]).name
    module.write_bytes(files[modules[0]])
    return found + _of_binary(wheel, module)


def _of_files(wheel: Path, files: dict[str, bytes], info: str) -> list[str]:
    found = []
    if wheel.stat().st_size > LARGEST:
        found.append(f"{wheel.stat().st_size / 1e6:.1f} MB, more than {LARGEST / 1e6:.0f}")
    others = {name.partition("/")[0] for name in files} - {wheel.name.partition("-")[0], info}
    if others:
        found.append(f"installs {sorted(others)} beside the package")
    record = {row[0]: row[1] for row in csv.reader(files[f"{info}/RECORD"].decode().splitlines())}
    if set(record) != set(files):
        found.append(f"RECORD and archive differ in {sorted(set(record) ^ set(files))}")
    for name, content in files.items():
        digest = "sha256=" + urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        if not name.endswith("/RECORD") and record.get(name) != digest:
            found.append(f"{name} is not what RECORD says")
    return found


def _of_metadata(wheel: Path, files: dict[str, bytes], info: str) -> list[str]:
    metadata = message_from_bytes(files[f"{info}/METADATA"])
    version = parse_wheel_filename(wheel.name)[1]
    found = []
    if metadata["Version"] != str(version):
        found.append(f"the name says version {version}, METADATA {metadata['Version']}")
    if metadata["License-Expression"] != "Apache-2.0":
        found.append(f"License-Expression is {metadata['License-Expression']}")
    licences = ["LICENSE"] if is_application(wheel) else ["LICENSE", "LICENSES/pybind11.txt"]
    return found + [f"no {licence}" for licence in licences if not files.get(f"{info}/licenses/{licence}")]


def is_application(wheel: Path) -> bool:
    """Whether this is the application's wheel, and not the library's."""
    return wheel.name.startswith("robustdml-")


def _of_application(files: dict[str, bytes], info: str) -> list[str]:
    metadata = message_from_bytes(files[f"{info}/METADATA"])
    found = [f"{name} is compiled" for name in files if name.endswith(".so")]
    if f"robustdml_ops=={metadata['Version']}" not in metadata.get_all("Requires-Dist", []):
        found.append("does not ask for the library of its own version")
    return found


def _of_library(wheel: Path, files: dict[str, bytes], info: str) -> list[str]:
    found = []
    if any(tag.platform.startswith("linux") for tag in parse_wheel_filename(wheel.name)[3]):
        found.append(f"{wheel.name} names no oldest glibc: release/repair.py has not seen it")
    listed = files.get(f"{info}/{sbom.PLACE}", b"").decode()
    wrong = sbom.faults(listed) if listed else "there is none"
    return found if wrong is None else [*found, f"list of components: {wrong}"]


def _of_binary(wheel: Path, module: Path) -> list[str]:
    read, found = binary.read(module), []
    if read.exported != {"PyInit__native"}:
        found.append(f"exports {len(read.exported)} symbols, {sorted(read.exported)[:5]} …, not PyInit__native alone")
    if read.needed - LIBRARIES:
        found.append(f"needs {sorted(read.needed - LIBRARIES)}")
    if read.paths:
        found.append(f"has its libraries looked for in {sorted(read.paths)}")
    glibc = {tuple(map(int, pair)) for pair in re.findall(r"manylinux_(\d+)_(\d+)_", wheel.name)}
    if glibc and read.newest("GLIBC") > max(glibc):
        found.append(f"needs glibc {read.newest('GLIBC')}, and its name says {max(glibc)}")
    cards = binary.architectures(module) if with_cuda(wheel) else CARDS
    if cards != CARDS:
        found.append(f"has code for {sorted(cards)}, expected {sorted(CARDS)}")
    return found


def with_cuda(wheel: Path) -> bool:
    """Whether the name is that of a build with CUDA: it has a label like +cu129, or none."""
    local = parse_wheel_filename(wheel.name)[1].local
    return local is None or local.startswith("cu")
