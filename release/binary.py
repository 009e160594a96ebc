"""The dependencies, symbols and GPU architectures of a shared library, read from its file."""

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
    """The dynamic section and symbols of a shared library."""

    needed: set[str]  # names of libraries
    exported: set[str]  # names of symbols
    versions: dict[str, set[tuple[int, ...]]]  # of required symbols, as {"GLIBC": {(2, 14), …}}
    paths: set[str]  # RPATH and RUNPATH

    def newest(self, family: str) -> tuple[int, ...]:
        """The newest required version of ``family`` ("GLIBC", "GLIBCXX"), or ()."""
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
    """Architectures with code in ``file``: ``sm_90`` for a binary, ``compute_90`` for PTX."""
    tool = cuobjdump()
    if tool is None:
        raise FileNotFoundError("no cuobjdump: it comes with CUDA's toolkit, and with Triton (pip install triton)")
    binaries = subprocess.run([tool, "--list-elf", file], capture_output=True, text=True, check=True).stdout
    texts = subprocess.run([tool, "--list-ptx", file], capture_output=True, text=True, check=True).stdout
    found = set(re.findall(r"\.(sm_\w+)\.cubin", binaries))
    return found | {name.replace("sm_", "compute_") for name in re.findall(r"\.(sm_\w+)\.ptx", texts)}


def cuobjdump() -> str | None:
    """The toolkit's program if it is on the path, else Triton's."""
    of_triton = [Path(folder) / "triton" / "backends" / "nvidia" / "bin" / "cuobjdump" for folder in sys.path]
    return shutil.which("cuobjdump", path=search_path()) or next(
        (str(file) for file in of_triton if file.exists()), None
    )
