"""Archives whose bytes follow from their content: sorted, with one time, one owner and two modes."""

import base64
import gzip
import hashlib
import io
import os
import tarfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

# Zip knows no time before 1980.
_FIRST_TIME = 315532800
# Of compression: the smallest files.
LEVEL = 9


def rewrite_sdist(archive: Path, epoch: int) -> None:
    """Write a ``.tar.gz`` again, each file with the time ``epoch`` (seconds since 1970)."""
    with tarfile.open(archive) as old:
        files = {one.name: (one.mode, old.extractfile(one).read()) for one in old.getmembers() if one.isfile()}  # type: ignore[union-attr]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as new:
        for name, (mode, content) in sorted(files.items()):
            one = tarfile.TarInfo(name)
            one.size, one.mtime, one.mode = len(content), epoch, _mode(mode)
            new.addfile(one, io.BytesIO(content))
    # No name and no time in the header.
    archive.write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def rewrite_wheel(wheel: Path, epoch: int, added: Mapping[str, bytes]) -> None:
    """Write a wheel again with the files ``added``, by name below its ``.dist-info``, and a ``RECORD`` of all.

    A file of that name is replaced.
    """
    with zipfile.ZipFile(wheel) as old:
        files = {one.filename: (one.external_attr >> 16, old.read(one)) for one in old.infolist() if not one.is_dir()}
    info = dist_info(files)
    files.update({f"{info}/{name}": (0o644, content) for name, content in added.items()})
    record = f"{info}/RECORD"
    files.pop(record, None)
    # The metadata comes last, as the format asks for, and RECORD last of it.
    names = sorted(files, key=lambda name: (name.startswith(f"{info}/"), name))
    lines = [f"{name},sha256={_digest(files[name][1])},{len(files[name][1])}" for name in names]
    files[record] = (0o644, "\n".join([*lines, f"{record},,", ""]).encode())
    moment = time.gmtime(max(epoch, _FIRST_TIME))[:6]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as new:
        for name in [*names, record]:
            mode, content = files[name]
            one = zipfile.ZipInfo(name, moment)
            one.external_attr = (0o100000 | _mode(mode)) << 16
            one.compress_type, one.create_system = zipfile.ZIP_DEFLATED, 3
            new.writestr(one, content, compresslevel=LEVEL)


def publish(archive: Path, folder: Path) -> Path:
    """Copy an archive to ``folder`` so that nobody ever sees half of it under its name; returns its path there.

    What a process that was killed left behind is written over by the next one for the same archive.
    """
    folder.mkdir(parents=True, exist_ok=True)
    half = folder / f".{archive.name}.part"
    with half.open("wb") as file:
        file.write(archive.read_bytes())
        file.flush()
        os.fsync(file.fileno())
    return half.replace(folder / archive.name)


def dist_info(names: Mapping[str, object]) -> str:
    """The one ``.dist-info`` folder among ``names``."""
    (found,) = {name.partition("/")[0] for name in names if name.partition("/")[0].endswith(".dist-info")}
    return found


def _mode(mode: int) -> int:
    return 0o755 if mode & 0o100 else 0o644


def _digest(content: bytes) -> str:
    """As ``RECORD`` writes it: base64 for URLs, without the padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
