"""Folders that are written to at run time: the cache of the recipes, and those of compilers."""

import os
import tempfile
from pathlib import Path

import torch

from robustdml_ops.doctor.finding import Finding
from robustdml_ops.doctor.user_cache import user_cache


def folders() -> Finding:
    """Where is written, and whether that can be done."""
    found = {"cache of data (ROBUSTDML_CACHE)": _cache(), "temporary files (TMPDIR)": _temporary()}
    if torch.cuda.is_available():
        found["kernels of Triton (TRITON_CACHE_DIR)"] = _triton()
    broken = {name: reason for name, (folder, reason) in found.items() if reason is not None}
    told = "; ".join(f"{name}: {folder or 'none'}" for name, (folder, _) in found.items())
    facts = {name: {"folder": folder, "broken": reason} for name, (folder, reason) in found.items()}
    if broken:
        wrong = "; ".join(f"{name}: {reason}" for name, reason in broken.items())
        return Finding("folders", told, f"name another folder in the variable: {wrong}", facts)
    return Finding("folders", told, facts=facts)


_Found = tuple[str | None, str | None]


def _cache() -> _Found:
    try:
        folder = user_cache()
    except RuntimeError as error:
        return None, str(error)
    return str(folder), _complaint(folder)


def _temporary() -> _Found:
    try:
        folder = tempfile.gettempdir()
    except OSError as error:
        return None, str(error)
    return folder, _complaint(Path(folder))


def _triton() -> _Found:
    try:
        folder = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    except RuntimeError as error:
        return None, str(error)
    return str(folder), _complaint(folder)


def _complaint(folder: Path) -> str | None:
    """Write into the folder, or into the nearest one above that is there: what rights say need not be so."""
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        return f"{folder} can't be written to ({(error.strerror or str(error)).lower()})"
    return None
