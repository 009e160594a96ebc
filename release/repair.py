"""``python -m release.repair WHEEL FOLDER``: what a wheel needs before others may have it.

auditwheel measures the oldest glibc that its symbols allow and names the wheel after it. The list of components is put
in, and the archive is written so that its bytes follow from its content. cibuildwheel calls this, too.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from release import archives, sbom
from release.tools import search_path

# PyTorch brings its own, of the same name: one copied in would be a second pool of threads in every process.
SHARED_WITH_TORCH = ("libgomp.so.1",)


def repair(wheel: Path, folder: Path, epoch: int) -> Path:
    """Write ``wheel`` to ``folder``, named after the platforms that it runs on; returns its path there."""
    with tempfile.TemporaryDirectory() as temporary:
        named = Path(temporary)
        exclude = [part for library in SHARED_WITH_TORCH for part in ("--exclude", library)]
        command = [sys.executable, "-m", "auditwheel", "repair", "--strip", *exclude, "-w", named, wheel]
        subprocess.run(command, env=os.environ | {"PATH": search_path()}, check=True)
        (repaired,) = named.glob("*.whl")
        with zipfile.ZipFile(repaired) as files:
            (module,) = (name for name in files.namelist() if name.endswith(".so"))
            files.extract(module, named)
        name, version = repaired.name.split("-")[:2]
        document = subprocess.run(
            [sys.executable, "-m", "release.sbom", named / module, name, version, str(epoch)],
            check=True,
            stdout=subprocess.PIPE,
        ).stdout
        archives.rewrite_wheel(repaired, epoch, {sbom.PLACE: document})
        return archives.publish(repaired, folder)


if __name__ == "__main__":
    moment = os.environ.get("SOURCE_DATE_EPOCH")
    if moment is None:
        sys.exit("SOURCE_DATE_EPOCH is not set: take the time of the commit, git log -1 --format=%ct")
    print(repair(Path(sys.argv[1]), Path(sys.argv[2]), int(moment)))
