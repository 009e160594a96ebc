"""The sections: ``python -m bench.gpu.sections NAME OUT SECONDS MACHINE`` makes the rows of one; the run starts it."""

import ast
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from robustdml_ops.backends import cards
from robustdml_ops.engine.similarity_chunks import accumulate, chunk_rows, product

from ..shapes import BATCH, LARGE, MIDDLE, SMALL, SMALL_BATCH, Shape
from . import ROOT, calls, contenders
from .contenders import CONTENDERS, GRAPH, OURS, PML, measure, profiled
from .results import BACKENDS, FAILED, NO_MEMORY, OK, TIME, Missing, Sheet

DRY, SQUARE, COPIED = Shape(32, 70, 16), 8192, 1 << 30
WORKERS = max(2, (os.cpu_count() or 8) - 4)  # of the tests: each compiles kernels on a core
FEWEST, TINY = 64, 1e-30  # classes, or samples, below which nothing is halved; a length of nothing
TEST_FOLDERS = ("anchor", "classes", "pairs", "rows", "otsu", "lambert_w", "vmf", "self_paced", "losses", "robust")
TEST_FOLDERS += ("optim", "similarity", "native", "package")
TOOLS, LONGEST_S = ("no tool", "memcheck", "racecheck", "synccheck"), 90.0  # each, at most
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)")
NATIVE = "import sys, torch; from robustdml_ops.backends.native_module import unavailable as reason;"
NATIVE += "print('reason:', reason(torch.device(sys.argv[1]), torch.float32))"
OF_PAIRS = ("multi-similarity", "contrastive", "sigmoid")
# Families with the shapes and types at which all contenders are measured.
STEPS = (
    *(("proxy-anchor", shape, dtype) for shape in (LARGE, SMALL) for dtype in ("bfloat16", "amp")),
    *(("softmax", shape, dtype) for shape, dtype in ((LARGE, "bfloat16"), (SMALL, "bfloat16"), (SMALL, "amp"))),
    *((family, shape, "bfloat16") for family in OF_PAIRS for shape in (BATCH, SMALL_BATCH)),
    ("contrastive, collapsed batch", BATCH, "bfloat16"),
    ("P_clean", MIDDLE, "bfloat16"),
)

ANCHOR, SOFTMAX = (("proxy-anchor", LARGE), ("proxy-anchor", SMALL)), (("softmax", LARGE), ("softmax", SMALL))
FUSED, PRESENT = ("fused", "recorded"), dict(cards.CARDS)
FORWARD = tuple(("P_clean", replace(MIDDLE, D=D)) for D in (64, 128, 512))
PAIRS = (("multi-similarity", BATCH),)
IN_L2 = {
    "chunk_least_mb": 33,
    "chunk_most_mb": 33,
}  # chunks that an H200's 50 MB hold: of recorded steps, as many launches
# The steps of a group, and fields of a row that change; or, in groups by kernel, numbers of its tile.
VARIANTS: dict[str, tuple[tuple[tuple[str, Shape], ...], list[dict[str, Any]]]] = {
    "fused": ((*ANCHOR, *SOFTMAX), [{"fused_steps": True}]),
    "recorded": ((*ANCHOR, *SOFTMAX), [{"fused_steps": True}, {"fused_steps": True, **IN_L2}, IN_L2]),
    "backends": ((*ANCHOR, *SOFTMAX, *PAIRS), [{"backends": ("native", "triton", "eager")}]),
    "chunk": ((*ANCHOR, *SOFTMAX), [{"chunk_least_mb": mb, "chunk_most_mb": mb} for mb in (64, 256, 512, 2048, 4096)]),
    "saved": (SOFTMAX, [{"saved_share": 1 << 50}]),
    "forward": (FORWARD, [{"fused_columns": columns} for columns in (0, 128, 256)]),
    "anchor_lse": (ANCHOR, [{"elements": 1024}, {"elements": 4096}, {"candidates": 512}, {"num_warps": 8}]),
    "class_lse": (SOFTMAX, [{"elements": 512}, {"elements": 2048}, {"num_warps": 8}]),
    "pairs": (PAIRS, [{"candidates": 512}, {"candidates": 256}, {"elements": 2048, "candidates": 512, "num_warps": 8}]),
    "rows": (ANCHOR, [{"elements": 4096}, {"elements": 4096, "num_warps": 8}]),
    "fused_class_lse": (FORWARD, [{"classes": 128}, {"num_warps": 4}]),
}


def run(command: list[object], seconds: float, **environment: str) -> tuple[int | None, str]:
    """Exit code, None where the time is up, and what the command prints, which the log has, too."""
    printed = Path(os.environ["BENCH_GPU_SITE"]) / "printed.txt"  # a pipe stays open as long as any grandchild lives
    with printed.open("w") as file:
        given: Any = {"cwd": ROOT, "env": os.environ | environment, "stdout": file, "stderr": subprocess.STDOUT}
        try:
            code: int | None = subprocess.run([*map(str, command)], timeout=max(1, seconds), **given).returncode
        except subprocess.TimeoutExpired:
            code = None
    text = printed.read_text(errors="replace")
    print("$", *command, f"\n{text}", flush=True)
    return code, text


def sized(sheet: Sheet, shape: Shape) -> Shape:
    """As small as can be in a dry run."""
    return Shape(*map(min, vars(shape).values(), vars(DRY).values())) if sheet.dry_run else shape


def build(sheet: Sheet) -> None:
    """The native module for this card, where it is not there yet; a dry run takes it as it is."""

    def native() -> dict[str, Any]:
        if reason() == "None":
            return {}
        if sheet.dry_run or shutil.which("nvcc") is None:
            raise Missing(f"nvcc; {reason()}")
        asked = {"ROBUSTDML_CUDA": "ON", "TORCH_CUDA_ARCH_LIST": str(sheet.machine["capability"])}
        code, text = run([sys.executable, "setup.py", "build_ext", "--inplace"], sheet.left, **asked)
        status = TIME if code is None else OK if reason() == "None" else FAILED
        return {"status": status, "reason": f"{reason()} {text.strip()[-400:]}"}

    def reason() -> str:
        return run([sys.executable, "-c", NATIVE, sheet.device], 120)[1].strip().rpartition("reason: ")[2]

    sheet.row("native module", "", native)


def correctness(sheet: Sheet, part: str) -> None:
    """Every loss and op against float64, by one backend and in one type."""
    sizes, (backend, dtype) = [Shape(8, 4, 6)] if sheet.dry_run else calls.SIZES, part.split()
    for size, name in itertools.product(sizes, calls.every_call.EVERY):
        if sheet.dry_run and (backend, dtype) == ("triton", "bfloat16"):
            continue  # the interpreter's products of bfloat16 are not the device's
        check = partial(calls.against_float64, name, size, dtype, sheet.device, backend)
        sheet.row(name, backend, check, size, dtype)


def tests(sheet: Sheet) -> None:
    """The project's tests that meet a GPU, kernels of Triton first; the plugin writes their rows."""
    folders = ["otsu"] if sheet.dry_run else TEST_FOLDERS
    files = [path for folder in folders for path in sorted((ROOT / "tests" / folder).glob("test_*.py"))]
    files.sort(key=lambda path: not path.name.endswith("_triton.py"))
    options = ["-q", "--tb=line", "-W", "default", "-p", "no:cacheprovider", "-p", "bench.gpu.outcomes"]
    options += [] if sheet.dry_run or find_spec("xdist") is None else ["-n", str(WORKERS), "--dist", "worksteal"]

    def all_of_them() -> dict[str, Any]:
        told = {"BENCH_GPU_SHEET": json.dumps([str(sheet.out), sheet.machine])}
        code, text = run([sys.executable, "-m", "pytest", *options, *files], sheet.left, **told)
        return {"status": {0: OK, None: TIME}.get(code, FAILED), "reason": text.strip()[-300:]}

    sheet.row("all of them", "", all_of_them)


@cache
def square(device: str, dtype: str) -> dict[str, Any]:
    """A large product; its rate is the floor of the steps."""
    size = SQUARE if device == "cuda" else DRY.B
    A, B = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in "AB")
    found = measure(lambda: [A @ B], device)
    return found | {"rate": 2.0 * size**3 / found["step_s"]}


def of_chunk(device: str, dtype: str, shape: Shape, who: str) -> dict[str, Any]:
    """One of the products of a sweep, over one chunk."""
    B, C, D, kind = shape.B, shape.C, shape.D, getattr(torch, dtype)
    rows = min(C, chunk_rows(C, B + 2 * D, torch.device(device)))
    X, V, dS = (torch.randn(*size, device=device).to(kind) for size in ((B, D), (rows, D), (rows, B)))
    S, dX, dP = (torch.zeros_like(each, dtype=torch.float32 if device == "cuda" else kind) for each in (dS, X, V))
    products = {
        "S = P·Xᵀ": lambda: product(V, X.t(), S),
        "dX += dSᵀ·P": lambda: accumulate(dX, dS.t(), V),
        "dP = dS·X": lambda: product(dS, X, dP),
    }
    flops, found = 2.0 * B * rows * D, measure(lambda: [products[who]()], device)
    return found | {"rate": flops / found["step_s"], "floor_s": flops / square(device, dtype)["rate"], "rows": rows}


def ceilings(sheet: Sheet) -> None:
    """A copy and large products, then the products of a chunk one by one."""

    def copied() -> dict[str, Any]:
        source = torch.rand(COPIED if sheet.device == "cuda" else DRY.B, device=sheet.device)
        target = torch.empty_like(source)
        found = measure(lambda: [target.copy_(source)], sheet.device)
        return found | {"rate": 2.0 * source.nbytes / found["step_s"]}

    sheet.row("copy", "", copied)
    for dtype in ("bfloat16", "float32"):
        sheet.row("product", "", partial(square, sheet.device, dtype), dtype=dtype)
    whose = ("S = P·Xᵀ", "dX += dSᵀ·P", "dP = dS·X")
    for shape, dtype, who in itertools.product((LARGE, SMALL), ("bfloat16", "float32"), whose):
        given = sized(sheet, shape)
        sheet.row("products of a chunk", who, partial(of_chunk, sheet.device, dtype, given, who), given, dtype)


def shortened(results: list[torch.Tensor], shape: Shape) -> list[torch.Tensor]:
    """Value and gradients of a step, of which the first rows are compared."""
    found = [each.detach() for each in results]
    by_rows = [each.t() if each.shape == (shape.D, shape.C) else each for each in found]
    return [each[:4096].clone() if each.dim() else each for each in by_rows]


def timed(sheet: Sheet, family: str, who: str, shape: Shape, dtype: str) -> str:
    """A contender's row, with the relative distances of its value and gradients from ours."""

    def results(of: str) -> list[torch.Tensor]:
        return shortened(contenders.step(family, of, shape, dtype, sheet.device)(), shape)

    def facts() -> dict[str, Any]:
        found = measure(contenders.step(family, who, shape, dtype, sheet.device), sheet.device)
        flops = float(contenders.PRODUCTS[family] * shape.B * (shape.C or shape.B) * shape.D)
        found["floor_s"] = flops / square(sheet.device, "bfloat16")["rate"]
        pairs = zip(results(who), results(OURS), strict=True) if who != OURS else ()
        return found | {
            "apart": [float((theirs - mine).norm() / mine.norm().clamp(min=1e-30)) for theirs, mine in pairs]
        }

    return sheet.row(family, who, facts, shape, dtype)


def steps(sheet: Sheet) -> None:
    """Ours of all families, then rivals; one that does not fit is halved, and ours is measured at that size, too."""
    for own, (family, shape, dtype) in itertools.product((True, False), STEPS):
        for who in [who for who in CONTENDERS[family] if (who in (OURS, GRAPH)) is own]:
            given = sized(sheet, shape)
            while timed(sheet, family, who, given, dtype) == NO_MEMORY and max(given.C, given.B) >= 2 * FEWEST:
                given = replace(given, C=given.C // 2) if given.C else replace(given, B=given.B // 2)
            timed(sheet, family, OURS, given, dtype)


def scaling(sheet: Sheet) -> None:
    """10³ to 10⁷ classes; what does not fit is the answer."""
    for k, family, who in itertools.product(range(3, 8), ("proxy-anchor", "softmax"), (OURS, PML)):
        timed(sheet, family, who, replace(sized(sheet, LARGE), C=k if sheet.dry_run else 10**k), "bfloat16")


def fused(sheet: Sheet) -> None:
    """Product and exponentials in one kernel against the present row, plain and recorded; how far they are apart."""
    variants(sheet, FUSED)


def settings(sheet: Sheet) -> None:
    """Every other variant of the card's row of cards.json, at every step of its group."""
    variants(sheet, [group for group in VARIANTS if group not in FUSED])


def variants(sheet: Sheet, groups: Sequence[str]) -> None:
    """The variants of the groups; the steps of "recorded" are CUDA graphs."""

    def facts(group: str, changes: dict[str, Any], family: str, shape: Shape) -> dict[str, Any]:
        device, given = torch.device(sheet.device), (shape, "bfloat16", sheet.device)
        with mock.patch.dict(cards.CARDS, {cards.architecture(device): changed(cards.card(device), group, changes)}):
            step = contenders.step(family, GRAPH if group == "recorded" else OURS, *given)
            found = measure(step, sheet.device)
            if group in FUSED and changes:
                pairs = list(zip(shortened(step(), shape), present(family, *given), strict=True))
                found["apart"] = [float((one - other).norm() / other.norm().clamp(min=1e-30)) for one, other in pairs]
            return found

    def present(family: str, shape: Shape, *given: str) -> list[torch.Tensor]:
        with mock.patch.dict(cards.CARDS, PRESENT):
            return shortened(contenders.step(family, OURS, shape, *given)(), shape)

    for group in groups:
        tried = VARIANTS[group][0]
        for (family, shape), (name, changes) in itertools.product(tried, named(group).items()):
            given = sized(sheet, shape)
            sheet.row(family, f"{group}; {name}", partial(facts, group, changes, family, given), given, "bfloat16")


def named(group: str) -> dict[str, dict[str, Any]]:
    """Changes by the variant's name, the present row first."""
    return {"present": {}} | {json.dumps(changes)[1:-1].replace('"', ""): changes for changes in VARIANTS[group][1]}


def changed(card: cards.Card, group: str, changes: dict[str, Any]) -> cards.Card:
    """The row with the changes in it."""
    if group in card.tiles:
        changes = {"tiles": {**card.tiles, group: {**card.tiles[group], **changes}}}
    return replace(card, **changes)


def kernels() -> list[str]:
    """Parts of our kernels' names: the namespace of the native ones, and Triton's functions that return nothing."""
    files = [ast.parse(path.read_text()) for path in (ROOT / "robustdml_ops").glob("[!b]*/**/*kernel*.py")]
    functions = [node for file in files for node in file.body if isinstance(node, ast.FunctionDef)]
    ours = [node for node in functions if any("triton.jit" in ast.unparse(each) for each in node.decorator_list)]
    return ["robustdml", *(node.name for node in ours if not any(isinstance(e, ast.Return) for e in ast.walk(node)))]


def sanitizer(sheet: Sheet) -> None:
    """compute-sanitizer's tools over our kernels alone, at odd shapes; first without a tool, which compiles them."""

    def checked(tool: str, backend: str) -> dict[str, Any]:
        names = [part for name in kernels() for part in ("--kernel-regex", f"kns={name}")]
        command = ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no", "--print-limit", "20", *names]
        script = [sys.executable, "-m", "bench.gpu.calls", backend, sheet.device]
        given, limit = ([], sheet.left) if tool == TOOLS[0] else (command, min(sheet.left, LONGEST_S))
        return judged(*run([*given, *script], limit, PYTORCH_NO_CUDA_MEMORY_CACHING="1"), bool(given))

    for backend, tool in itertools.product(BACKENDS, TOOLS[: 1 if sheet.dry_run else None]):
        sheet.row(tool, backend, partial(checked, tool, backend))


def judged(code: int | None, text: str, summary: bool = True) -> dict[str, Any]:
    """What a tool found, by its last line and its exit code; where the time is up, how far it got."""
    called, found = re.findall(r"^call (.+)$", text, re.MULTILINE), SUMMARY.findall(text)
    reports = [line for line in text.splitlines() if line.startswith("========= ") and "SUMMARY" not in line]
    wrong = code or any(map(int, found)) or any("Invalid" in line or "hazard" in line for line in reports)
    wrong = wrong or (code == 0 and summary and not found)
    facts = {"reason": f"{len(called)} calls, last {called[-1:]}", "reports": reports[:30], "tail": text[-300:]}
    return facts | {"status": FAILED if wrong else TIME if code is None else OK}


def profile(sheet: Sheet) -> None:
    """Launches and the longest kernels of our steps: last, since a process that was profiled is slower ever after."""
    for family, shape, dtype in STEPS:
        given = sized(sheet, shape)
        made = partial(contenders.step, family, OURS, given, dtype, sheet.device)
        sheet.row(family, OURS, lambda made=made: profiled(made(), sheet.device), given, dtype)


if __name__ == "__main__":
    name, out, seconds, machine, part = sys.argv[1:]
    globals()[name](Sheet(name, Path(out), float(seconds), json.loads(machine)), *filter(None, [part]))
