"""A section's rows while they are made: one that fails, or finds no memory or time, leaves the others be."""

import gc
import json
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from ..shapes import Shape
from . import rows
from .ceilings import Ceilings

SMALL = Shape(8, 70, 16)  # of a dry run
FEWEST = 64  # classes, and samples, below which no step is taken down


class Absent(Exception):  # noqa: N818
    """What a measurement needs is not there; the message is the reason."""


class Sheet:
    """Writes rows of one section.

    Parameters
    ----------
    letter, out, run : str, Path, str
        The section; the folder of results; what tells this run from earlier ones in the same folder.
    seconds : float
        Until what has not begun is not run.
    dry_run : bool
        At small shapes on the CPU: to try the section, not the card.
    """

    def __init__(self, letter: str, out: Path, run: str, seconds: float, dry_run: bool) -> None:
        self.letter, self.out, self.run, self.dry_run = letter, out, run, dry_run
        self.end = time.monotonic() + seconds
        self.device = torch.device("cpu" if dry_run else "cuda")
        self.machine = json.loads((out / rows.MACHINE).read_text())
        earlier = [row for row in rows.read(out) if row["dry_run"] == dry_run]
        self.done = {rows.key(row) for row in earlier if row["run"] == run}
        self.ceilings = Ceilings.of(earlier)

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()

    def shape(self, shape: Shape) -> Shape:
        """``shape``, in a dry run as small as can be."""
        return Shape(*map(min, asdict(shape).values(), asdict(SMALL).values())) if self.dry_run else shape

    def floor(self, flops: float, dtype: str | None) -> dict[str, Any]:
        """Facts of a step whose products are so many flops; none where it has no products."""
        if not flops:
            return {}
        return {"floor_s": self.ceilings.products_s(flops, dtype), "floor_by": self.ceilings.source}

    def write(self, name: str, status: str, **facts: Any) -> None:
        """Add a row."""
        shape = facts.pop("shape", None)
        row = {"section": self.letter, "name": name, "status": status, "shape": shape and asdict(shape), **facts}
        rows.append(self.out, {**row, "run": self.run, "dry_run": self.dry_run, "machine": self.machine})

    def row(
        self,
        name: str,
        measure: Callable[[Shape], Mapping[str, Any]],
        shape: Shape = SMALL,
        step_down: bool = True,
        **labels: str | None,
    ) -> None:
        """Measure once and write what was found.

        Parameters
        ----------
        name : str
            With ``shape`` and ``labels`` (``dtype``, ``variant``) what tells the row from all others of the section.
        measure : callable
            Given the shape it returns the row's facts, among them ``status`` where that is not "ok".
        step_down : bool
            Whether half of the classes (of the samples, where there are no classes) are tried where memory is short.
        """
        asked = self.shape(shape)
        facts: dict[str, Any] = {"shape": asked, **labels}
        if rows.key({"section": self.letter, "name": name, **facts, "shape": asdict(asked)}) in self.done:
            return
        if self.left <= 0:
            self.write(name, rows.NOT_RUN, reason="time", **facts)
            return
        started = {"section": self.letter, "name": name, "shape": asdict(asked), **labels}
        (self.out / rows.STARTED).write_text(json.dumps(started))
        found = self._try(measure, asked)
        given = asked
        while found.get("status") == rows.NO_MEMORY and step_down and (half := _smaller(given)) and self.left > 0:
            given = half
            found = {**self._try(measure, given), "given": asdict(given), "reason": f"out of memory at {asked}"}
        (self.out / rows.STARTED).unlink()
        self.write(name, **{"status": rows.OK, **facts, **found})
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # a sticky error ends this process here, and the next one goes on

    def _try(self, measure: Callable[[Shape], Mapping[str, Any]], shape: Shape) -> dict[str, Any]:
        try:
            return dict(measure(shape))
        except Absent as absent:
            return {"status": rows.ABSENT, "reason": str(absent)}
        except torch.OutOfMemoryError as error:
            found = {"status": rows.NO_MEMORY, "reason": str(error).partition("\n")[0]}
        except Exception as error:
            lines = traceback.format_exc().splitlines()[-12:]
            return {"status": rows.ERROR, "reason": f"{type(error).__name__}: {error}"[:500], "traceback": lines}
        gc.collect()  # with the exception gone, so are the tensors that its frames held
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return found


def _smaller(shape: Shape) -> Shape | None:
    """Half of the classes, or of the samples where there are none."""
    if shape.C >= 2 * FEWEST:
        return replace(shape, C=shape.C // 2)
    return replace(shape, B=shape.B // 2) if shape.B >= 2 * FEWEST else None
