"""Results as lines of JSON, each on disk as soon as it is known, and their table."""

import gc
import json
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RESULTS = "results.jsonl"
BACKENDS, DTYPES = ("triton", "native"), ("amp", "bfloat16", "float32")
KEY = ("section", "what", "shape", "dtype", "who")
HEADER = (*KEY, "ms", "±", "÷ floor", "÷ ours", "GB", "remark")
# A check that does not hold, or an exception; a package or tool that is not there; begun and not ended; no time left.
OK, FAILED, MISSING, NO_MEMORY, BEGUN, TIME = "ok", "failed", "missing", "no memory", "begun", "time"
# A variant wins that is faster than the present row by so much on average, and nowhere slower by more.
GAIN, LOSS = 0.02, 0.05
AGAIN = (MISSING, BEGUN, TIME)  # measured again by the next run in the same folder


class Missing(Exception):  # noqa: N818
    """A measurement needs something that is not there; the message names it."""


def append(out: Path, row: Mapping[str, Any]) -> None:
    """Add a row to the results in ``out``."""
    with (out / RESULTS).open("a") as file:
        file.write(json.dumps(row, default=str) + "\n")
        file.flush()
        os.fsync(file.fileno())


def key(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What tells a row from the others of a machine."""
    return tuple(str(row.get(part, "")) for part in KEY)


def read(*paths: Path) -> list[dict[str, Any]]:
    """Rows of files, or of the results in folders; of equal rows of a machine the last one."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for path in paths:
        file = path / RESULTS if path.is_dir() else path
        for line in file.read_text().splitlines() if file.exists() else ():
            if line.endswith("}"):  # else the command was cut off while it wrote
                row = json.loads(line)
                found.pop((str(row["machine"]), *key(row)), None)
                found[(str(row["machine"]), *key(row))] = row
    return list(found.values())


class Sheet:
    """Writes the rows of one section; no row is begun after ``seconds``."""

    def __init__(self, section: str, out: Path, seconds: float, machine: Mapping[str, Any]) -> None:
        self.section, self.out, self.machine, self.end = section, out, machine, time.monotonic() + seconds
        self.dry_run, self.device = machine["dry_run"], "cpu" if machine["dry_run"] else "cuda"
        earlier = [row for row in read(out) if row["machine"] == machine and row["section"] != "build"]
        self.done = {key(row): row["status"] for row in earlier if row["status"] not in AGAIN}

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()

    def row(self, what: str, who: str, measure: Callable[[], Any], shape: object = "", dtype: str = "") -> str:
        """Measure once, write the facts that ``measure`` returns, return the status; no failure ends the section."""
        row = {"section": self.section, "what": what, "shape": str(shape), "dtype": dtype, "who": who}
        if key(row) in self.done:
            return self.done[key(row)]
        row["machine"] = self.machine
        append(self.out, row | {"status": BEGUN if self.left > 0 else TIME})
        if self.left <= 0:
            return TIME
        try:
            found = {"status": OK, **measure()}
        except (Missing, ImportError, FileNotFoundError) as error:
            found = {"status": MISSING, "reason": str(error)}
        except Exception as error:
            status = NO_MEMORY if type(error).__name__ == "OutOfMemoryError" else FAILED
            found = {"status": status, "reason": f"{type(error).__name__}: {error}"[:500]}
        append(self.out, row | found)
        if found["status"] in (FAILED, NO_MEMORY) and self.device == "cuda":
            gc.collect()
            sys.modules["torch"].cuda.synchronize()  # a broken context ends this process; the next one goes on behind
            sys.modules["torch"].cuda.empty_cache()
        return str(found["status"])


def table(results: list[dict[str, Any]]) -> str:
    """Markdown: the machines, and a line for each row; of tests that do not fail their numbers by file."""
    ours = {key(row)[1:4]: row["step_s"] for row in results if row["who"] == "robustdml" and "step_s" in row}
    lines, counted = [dict(zip(HEADER, HEADER, strict=True)), dict.fromkeys(HEADER, "---")], dict[str, list[str]]()
    for row in results:
        if row["section"] == "tests" and row["status"] != FAILED:
            counted.setdefault(row["what"], []).append(row["status"])
            continue
        cells = dict(zip(HEADER, key(row))) | {"remark": remark(row)}  # noqa: B905
        if s := row.get("step_s"):
            cells |= {"ms": f"{1e3 * s:.4g}", "±": f"{1e3 * row['spread_s']:.2g}"}
            cells |= {"GB": f"{row['beyond_bytes'] / 1e9:.2f}"}
            cells |= {"÷ floor": f"{s / row['floor_s']:.2f}"} if "floor_s" in row else {}
            cells |= {"÷ ours": f"{s / ours[key(row)[1:4]]:.2f}"} if key(row)[1:4] in ours else {}
        lines.append(cells)
    for what, found in counted.items():
        told = ", ".join(f"{found.count(status)} {status}" for status in dict.fromkeys(found))
        lines.append({"section": "tests", "what": what, "remark": told})
    text = ["| " + " | ".join(line.get(column, "").replace("|", "/") for column in HEADER) + " |" for line in lines]
    machines = [", ".join(f"{name} {value}" for name, value in row["machine"].items()) for row in results]
    return "\n".join([*dict.fromkeys(machines), "", *text])


# What a file has of a row.
STORED = (
    *KEY,
    "status",
    "step_s",
    "spread_s",
    "host_s",
    "backlog_s",
    "beyond_bytes",
    "floor_s",
    "rate",
    "launches",
    "busy_s",
    "longest",
)
SUMMED = {"correctness": ("who", "dtype"), "tests": ("what",)}  # sections of which a file has numbers by these parts


def stored(rows: list[dict[str, Any]]) -> str:
    """Rows for the repository: of those with one key the last; of tests and of correct calls their numbers alone."""
    machines = list({str(row["machine"]): row["machine"] for row in rows}.values())
    lines, counted = list[dict[str, Any]](), dict[tuple[Any, ...], dict[str, Any]]()
    for row in {key(row): row for row in rows}.values():
        machine = {"machine": machines.index(row["machine"])}
        summed = {part: row[part] for part in SUMMED.get(row["section"], ())}
        if summed and row["who"]:
            group = counted.setdefault((*summed.values(), *machine.values()), {"section": row["section"]} | summed)
            group[row["status"]] = group.get(row["status"], 0) + 1
            if row.get("errors"):
                group["errors"] = max(_short(max(row["errors"])), group.get("errors", 0.0))
            group |= machine
        if not summed or row["status"] not in (OK, "skipped"):
            errors = {name: _short(max(row[name])) for name in ("errors", "apart") if row.get(name)}
            told = {} if row["status"] == OK else {"reason": remark(row)}
            lines.append({part: _short(row[part]) for part in STORED if part in row} | errors | told | machine)
    parts = {"machines": machines, "rows": [*counted.values(), *lines]}
    written = (f'"{name}": [\n  ' + ",\n  ".join(map(json.dumps, each)) + "\n]" for name, each in parts.items())
    return "{" + ", ".join(written) + "}\n"


def _short(value: Any) -> Any:
    """A number with four digits, and what is no number as it is."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def remark(row: dict[str, Any]) -> str:
    """Status where it is not "ok", with the reason; or the figure that is no time."""
    if row["status"] != OK:
        return " ".join(f"{row['status']}: {row.get('reason', '')}".split())[:200]
    if "launches" in row:
        return f"{row['launches']} launches, {1e3 * row['busy_s']:.3g} ms of kernels"
    errors = row.get("errors") or row.get("apart")
    return f"{max(errors):.1e} apart" if errors else f"{row['rate'] / 1e12:.3g} T a second" if "rate" in row else ""


def winners(rows: list[dict[str, Any]]) -> dict[str, str]:
    """The fastest variant of each group of settings, of those that were measured at every step of it."""
    times: dict[str, dict[str, dict[tuple[str, ...], float]]] = defaultdict(lambda: defaultdict(dict))
    for row in (row for row in rows if row["section"] in ("fused", "settings") and row["status"] == OK):
        group, _, variant = row["who"].partition("; ")
        times[group][variant][key(row)[1:4]] = row["step_s"]
    won = {}
    for group, variants in times.items():
        best, present = 1 - GAIN, variants["present"]
        for name, took in variants.items():
            ratios = [took.get(step, math.inf) / present[step] for step in present] or [1.0]
            if (mean := math.prod(ratios) ** (1 / len(ratios))) <= best and max(ratios) <= 1 + LOSS:
                best, won[group] = mean, name
    return won
