"""Tables of steps that do more than a plain step, draw some of the classes, or divide the batch, on the CPU."""

from website.bench_tables import cpu, seconds, times
from website.tables import table

SHARES = {"1 %": "softmax over 1% of the classes, with Adagrad, B=512 C=2e6 D=64"}
SHARES["10 %"] = SHARES["1 %"].replace("1%", "10%")
WAYS = ("robustdml", "pytorch", "compile")
TYPES = ("float32", "bfloat16")
PAIRS = {"multi-similarity": "ms", "contrastive": "contrastive", "SupCon": "supcon", "NT-Xent": "nt-xent"}
ADDED = {"ids": "ids", "three labels a sample": "labels", "observed": "observed"}


def sampled_steps() -> str:
    """A step over drawn classes and its optimiser, beside PyTorch."""
    rows = []
    for share, group in SHARES.items():
        for dtype in TYPES:
            ours, *others = (times()[group, f"{who}/softmax, {dtype}"]["median_s"] for who in WAYS)
            rows.append([share, dtype, *map(seconds, (ours, *others)), f"{min(others) / ours:.1f}×"])
    return table(["classes drawn", "proxies", "here", "PyTorch", "`torch.compile`", "faster than the fastest by"], rows)


def related_steps() -> str:
    """Ids, several labels and observation: a step in units of the plain one."""
    rows = []
    for title, kind in PAIRS.items():
        for size in ("B=1024", "B=8192"):
            group = f"pairs, {kind} beside the plain step, {size} D=512"
            found = [times()[group, f"robustdml/{kind} {what}"] for what in ADDED.values()]
            rows.append([title, size, *(f"{row['median_s'] / row['floor_s']:.2f}" for row in found)])
    for title, kind in {"softmax": "normalized-softmax", "ArcFace": "arcface"}.items():
        for size in ("B=256 C=1e5 D=128", "B=512 C=2e4 D=512"):
            row = times()[f"observed, {size}; the floor is the plain step", f"robustdml/{kind} observed"]
            rows.append([title, size, "", "", f"{row['median_s'] / row['floor_s']:.2f}"])
    return table(["loss", "size", *ADDED], rows)


def micro_batches() -> str:
    """Peak memory of a step by micro-batches, beside that of the whole batch."""
    found = {
        row["contender"]: row for row in cpu()["memory"] if row["group"].startswith("memory of a network and SupCon")
    }
    sizes = sorted(found, key=int, reverse=True)
    rows = [[f"{int(size):,}", f"{found[size]['beyond_mb']:.0f} MB"] for size in sizes]
    return table(["micro-batch", "peak beyond parameters, gradients and inputs"], rows)
