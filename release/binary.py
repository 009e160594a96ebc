"""What a shared library says of itself: what it needs, what it offers, for which cards it has code."""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from release.tools import search_path


@dataclass(frozen=True)
class Binary:
    """A shared library as its file has it.

    Attributes
    ----------
    needed : set of str
        Names of the libraries that it asks for.
    exported : set of str
        Names of the symbols that it offers.
    versions : dict of str to set of tuple of int
        The versions that it asks for, as ``{"GLIBC": {(2, 14), …}}``.
    paths : set of str
        Folders in which it has its libraries looked for.
    """

    needed: set[str]
    exported: set[str]
    versions: dict[str, set[tuple[int, ...]]]
    paths: set[str]

    def newest(self, family: str) -> tuple[int, ...]:
        """The newest version of ``family`` ("GLIBC", "GLIBCXX") that it asks for; () for none."""
        return max(self.versions.get(family, {()}))


def read(file: Path) -> Binary:
    """Read the dynamic section and symbols of ``file``."""
    with file.open("rb") as stream:
        elf = ELFFile(stream)
        dynamic = [tag for part in elf.iter_sections() if isinstance(part, DynamicSection) for tag in part.iter_tags()]
        symbols = elf.get_section_by_name(".dynsym")
        return Binary(
            needed={tag.needed for tag in dynamic if tag.entry.d_tag == "DT_NEEDED"},
            exported={one.name for one in symbols.iter_symbols() if one.entry.st_shndx != "SHN_UNDEF" and one.name},
            versions=_versions(elf),
            paths={getattr(tag, tag.entry.d_tag[3:].lower()) for tag in dynamic if tag.entry.d_tag in _PATHS},
        )


_PATHS = ("DT_RPATH", "DT_RUNPATH")


def _versions(elf: ELFFile) -> dict[str, set[tuple[int, ...]]]:
    found: dict[str, set[tuple[int, ...]]] = {}
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for _, auxiliaries in section.iter_versions():
                for one in auxiliaries:
                    match = re.fullmatch(r"([A-Z_]+)_(\d+(?:\.\d+)*)", one.name)
                    if match:
                        found.setdefault(match[1], set()).add(tuple(map(int, match[2].split("."))))
    return found


def architectures(file: Path) -> set[str]:
    """Cards that ``file`` has code for: ``sm_90`` for a binary, ``compute_90`` for PTX."""
    tool = cuobjdump()
    if tool is None:
        raise FileNotFoundError("no cuobjdump: it comes with CUDA's toolkit, and with Triton (pip install triton)")
    binaries = subprocess.run([tool, "--list-elf", file], capture_output=True, text=True, check=True).stdout
    texts = subprocess.run([tool, "--list-ptx", file], capture_output=True, text=True, check=True).stdout
    found = set(re.findall(r"\.(sm_\w+)\.cubin", binaries))
    return found | {name.replace("sm_", "compute_") for name in re.findall(r"\.(sm_\w+)\.ptx", texts)}


def cuobjdump() -> str | None:
    """Of the toolkit where it is on the path, else of Triton."""
    of_triton = [Path(folder) / "triton" / "backends" / "nvidia" / "bin" / "cuobjdump" for folder in sys.path]
    return shutil.which("cuobjdump", path=search_path()) or next(
        (str(file) for file in of_triton if file.exists()), None
    )
