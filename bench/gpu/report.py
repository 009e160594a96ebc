"""Tables of a run, and a plot of its times."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robustdml_ops.bench.suite import markdown, seconds

from . import rows
from .ceilings import Ceilings
from .plan import SECTIONS
from .targets import Found, table

MEMORY = "beyond inputs and gradients"
HEADER = ("what", "shape", "type", "variant", "step", "÷ floor", "host", "kernels", "launches", MEMORY, "")
PLOTTED = "fgh"  # sections with times beside each other


def draw(path: Path) -> str:
    """Markdown of the results in a file or folder, and ``<results>.png`` beside them where matplotlib is installed."""
    results = rows.read(path)
    parts = [told(results[-1]), table(Found(results), Ceilings.of(results))]
    for section in SECTIONS:
        found = list(rows.of_section(results, section.letter))
        if found:
            lines = [cells(row) for row in found]
            used = [column for column in range(len(HEADER)) if any(line[column] for line in lines)]
            kept = [tuple(line[column] for column in used) for line in lines]
            parts.append(f"## ({section.letter}) {section.title}")
            parts.append(markdown(tuple(HEADER[column] for column in used), kept))
    file = (path / rows.RESULTS if path.is_dir() else path).with_suffix(".png")
    parts.append(plot(results, file))
    return "\n\n".join(part for part in parts if part) + "\n"


def told(row: dict[str, Any]) -> str:
    """What the results were made on."""
    machine = row["machine"]
    device = f"{machine['cpu']}, a dry run: no figure of a GPU" if row["dry_run"] else machine["gpu"]
    names = ("driver", "python", "torch", "triton", "commit")
    return f"{device}; " + ", ".join(f"{name} {machine[name]}" for name in names if machine[name])


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """One line; what is no time or count stands in the last cell."""
    shape = row.get("given") or row["shape"]
    times = ("" if row.get(key) is None else seconds(row[key]) for key in ("step_s", "host_s", "busy_s"))
    step, *others = times
    floor = f"{row['step_s'] / row['floor_s']:.2f}" if "floor_s" in row and "step_s" in row else ""
    beyond = row.get("beyond_bytes")
    return (
        row["name"],
        " ".join(f"{size}={value}" for size, value in shape.items() if value) if shape and "step_s" in row else "",
        row.get("dtype") or "",
        row.get("variant") or "",
        step,
        floor,
        *others,
        str(row.get("launches", "")),
        "" if beyond is None else f"{beyond / 2**20:,.0f} MB",
        remark(row),
    )


def remark(row: dict[str, Any]) -> str:
    """Status and reason where there is one, or the figure that is no time of a step."""
    if row["status"] != rows.OK or "given" in row:
        return " ".join(f"{row['status']}: {row.get('reason', '')}".split())[:160].replace("|", "/")
    if "passed" in row:
        return ", ".join(f"{row[key]} {key}" for key in ("passed", "skipped") if row.get(key) is not None)
    if "errors" in row:
        return f"{row['errors']}" if isinstance(row["errors"], int) else f"{max(row['errors']):.1e}"
    if "rate" in row:
        return f"{row['rate'] / 1e12:.3g} T a second"
    return str(row.get("version") or (f"{row['ratio']:.3f}×" if "ratio" in row else ""))


def plot(results: Sequence[dict[str, Any]], file: Path) -> str:
    """A bar for each step that was timed; returns where it was drawn, or why not."""
    timed = [row for row in results if row["section"] in PLOTTED and "step_s" in row]
    if not timed:
        return ""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        return f"No plot: {error}"
    figure = Figure(figsize=(10, 0.2 * len(timed) + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    others = [row["section"] == "g" and not row["name"].startswith("robustdml") for row in timed]
    colours = ["tab:gray" if other else "tab:blue" for other in others]
    places = range(len(timed))
    axes.barh(places, [1e3 * row["step_s"] for row in timed], color=colours)
    labels = [f"({row['section']}) " + ", ".join(filter(None, cells(row)[:4])) for row in timed]
    axes.set_yticks(places, labels, fontsize=6)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("ms a step (blue: robustdml_ops)" + (", of a dry run" if timed[0]["dry_run"] else ""), fontsize=8)
    figure.savefig(file, dpi=110)
    return f"![Times of a step]({file.name})"
