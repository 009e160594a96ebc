"""What a plain step on the CPU costs the host: counts, never times. Where a figure falls, lower it here."""

import re

import pytest
import torch

from bench import host
from bench.counts import counted
from bench.families import FAMILIES, PLAIN
from tests.subprocesses import ROOT

pytestmark = [
    pytest.mark.usefixtures("as_in_training"),
    pytest.mark.skipif(torch.__version__ < "2.10", reason="PyTorch's own functions are counted, of newer versions"),
]
# At most: Python functions; functions of PyTorch that Python calls by name; operations of PyTorch's dispatcher.
CALLS = {
    "proxy-anchor": (52, 28, 8),
    "normalized-softmax": (55, 30, 9),
    "cosface": (55, 30, 9),
    "arcface": (55, 30, 9),
    "proxy-nca": (55, 30, 9),
    "soft-triple": (55, 30, 9),
    "multi-similarity": (45, 21, 6),
    "euclidean-contrastive": (48, 21, 6),
    "supcon": (45, 21, 6),
    "nt-xent": (45, 21, 6),
    "info-nce": (42, 27, 10),
}
# At most: files of the library that are entered.
FILES = {
    "proxy-anchor": 7,
    "normalized-softmax": 8,
    "cosface": 8,
    "arcface": 8,
    "proxy-nca": 8,
    "soft-triple": 8,
    "multi-similarity": 6,
    "euclidean-contrastive": 6,
    "supcon": 6,
    "nt-xent": 6,
    "info-nce": 5,
}


@pytest.fixture
def step(native):
    """Counts of a step of a family, after those that make what later ones keep."""

    def run(kind):
        made = host.workload_of(kind, host.CPU).contender(f"robustdml/{kind}")
        for _ in range(host.WARM):
            made()
        return counted(made)

    return run


@pytest.mark.parametrize("kind", PLAIN)
def test_calls_of_a_plain_step(step, kind):
    found = step(kind)
    calls = (found.functions, found.builtins, found.ops)
    assert all(0 < one <= most for one, most in zip(calls, CALLS[kind], strict=True)), calls
    assert 0 < len(found.files) <= FILES[kind], sorted(found.files)


def test_the_page_lists_the_files_of_a_step(step):
    """The table of docs/design.md has the files that the trace of a step has, and files of csrc that there are."""
    page = (ROOT / "docs" / "design.md").read_text()
    rows = page.partition("A step of `ProxyAnchorLoss` on the CPU, file by file:\n\n")[2].partition("\n\n")[0]
    listed = re.findall(r"`([\w./]+)`", " ".join(row.split("|")[1] for row in rows.splitlines()[2:]))
    native = [name for name in listed if name.startswith("csrc/")]
    assert native and [name for name in native if not (ROOT / name).exists()] == []
    assert sorted(set(listed) - set(native)) == sorted(step("proxy-anchor").files)


def test_the_way_to_a_gpu_is_counted_without_one(monkeypatch):
    """Launches of one chunk and of each further one; nothing of it stays behind."""
    pytest.importorskip("triton", minversion="3.6", reason="Triton is not installed")
    for name, value in {"RIVALS": ("pml", "torch"), "TURNS": 1, "EACH": 2}.items():
        monkeypatch.setattr(host, name, value)
    kinds = ["proxy-anchor", "arcface", "supcon"]
    rows = host.measured(kinds)["rows"]
    ours = {row["family"]: row for row in rows if row["path"] == "gpu" and row["who"] in ("robustdml", host.PROTOTYPE)}
    assert set(ours) == {host.THIN, *kinds}
    for kind in kinds:
        assert ours[kind]["launches"] > 0 and ours[kind]["chunk_launches"] >= 1, ours[kind]
    assert {row["launches"] for row in rows if row["path"] == "cpu"} == {0}
    assert host.table(rows).count("\n") == len(rows) + 1


# On the GPU's path, at most: as in CALLS; launches of Triton's kernels; and launches of a further chunk.
OF_PAIRS_ON_A_GPU = {
    "multi-similarity": (83, 34, 20, 4, 1),
    "ms": (83, 34, 20, 4, 1),
    "euclidean-contrastive": (94, 46, 25, 5, 2),
    "supcon": (85, 38, 27, 4, 1),
    "nt-xent": (85, 38, 27, 4, 1),
    "info-nce": (105, 50, 35, 7, 0),
    "sigmoid": (85, 45, 32, 6, 1),
}


@pytest.mark.parametrize("kind", OF_PAIRS_ON_A_GPU)
def test_calls_of_a_step_on_the_way_to_a_gpu(kind):
    """Of a plan; each further chunk takes its products and its epilogue, and a few views."""
    pytest.importorskip("triton", minversion="3.6", reason="Triton is not installed")
    most, found = OF_PAIRS_ON_A_GPU[kind], []
    with host.stand_ins(host.GPU.B) as launched:
        for chunks in (1, 2) if most[4] else (1,):
            step = host.workload_of(kind, host.GPU, chunks).contender(f"robustdml/{kind}")
            for _ in range(host.WARM):
                step()
            launched.clear()
            step()
            launches, counts = len(launched), counted(step)
            found.append((counts.functions, counts.builtins, counts.ops, launches))
    assert all(0 < one <= limit for one, limit in zip(found[0], most[:4], strict=True)), found
    if most[4]:
        more = [after - before for before, after in zip(*found, strict=True)]
        assert more[3] == most[4] and more[0] <= 8 and more[1] <= 8, more


def test_every_family_has_its_figures():
    assert set(CALLS) == set(FILES) == set(PLAIN) <= set(FAMILIES)
