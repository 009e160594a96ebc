"""The history of a run as TensorBoard reads it."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from robustdml.errors import UsageError
from robustdml.progress import Recorder

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"
# Prefix of a quantity, by the group of plots that it belongs to. What has no prefix of these is a metric of the test.
_TRAINING = ("loss", "seconds", "margin", "filter_", "kappa_", "maw", "sdaw", "age")
_LABELS = ("_right", "_wrong", "_auc")


class TensorBoard(Recorder):
    """Writes each number of an epoch's record as a scalar, with the epoch as its step."""

    def __init__(self, folder: Path) -> None:
        if find_spec("tensorboard") is None:
            raise UsageError(
                "logger tensorboard needs a package: install it with `pip install 'robustdml[tensorboard]'`"
            )
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def start(self, history: Sequence[dict[str, float]], epochs: int) -> None:
        """Open an event file."""
        from torch.utils.tensorboard import SummaryWriter

        goes_on = self._folder.is_dir() and any(self._folder.iterdir())
        # A file where the folder should be is told in plain words; the writer's thread would only end.
        self._folder.mkdir(parents=True, exist_ok=True)
        self._writer = SummaryWriter(str(self._folder), purge_step=len(history) + 1 if goes_on else None)
        for record in () if goes_on else history:
            self.epoch(record)

    def epoch(self, record: dict[str, float]) -> None:
        """Write the numbers of an epoch."""
        if self._writer is None:
            return
        try:
            for name, value in record.items():
                if name != "epoch":
                    self._writer.add_scalar(f"{_group(name)}/{name}", value, int(record["epoch"]))
            self._writer.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._folder)) from error

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()


def _group(name: str) -> str:
    if name.endswith(_LABELS):
        return "labels"
    return "training" if name.startswith(_TRAINING) else "test"
