"""``load_class_matrix``: the class matrix of another library's head, whole or in a file of each process."""

import pickle
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robustdml_ops.engine.shards import check_held
from robustdml_ops.engine.validation import check_matrix
from robustdml_ops.losses.families.class_matrix import ClassMatrixLoss

File = str | PathLike[str]
# Files of arcface_torch, one of each process: the state of its Partial FC, alone or among other states.
_STEMS = ("softmax_fc_gpu_", "checkpoint_gpu_")
# Rows that are read at a time.
_ROWS = 1 << 16


@torch.no_grad()
def load_class_matrix(
    loss: nn.Module,
    source: Tensor | nn.Module | Mapping[str, Any] | File | Sequence[File],
    *,
    drop_bias: bool = False,
) -> None:
    """Copy a trained class matrix, of ``nn.Linear`` or of insightface's Partial FC, into a loss in place.

    The loss may be on one process or sharded by ``shard_classes`` on any number of them; each reads its own rows alone.

    Parameters
    ----------
    loss : nn.Module
        A loss with a class matrix, such as ``ArcFaceLoss`` or ``ProxyAnchorLoss``, on any device.
    source : Tensor, nn.Module, mapping, path or sequence of paths
        Rows of all classes in the order of their numbers, (C, D), or (C·H, D) with H centres a class, those of class k
        from row k·H on, in any floating-point type:

        - a tensor, a module with ``weight``, as ``nn.Linear(D, C)``, or its ``state_dict``;
        - a file of a tensor or a ``state_dict``;
        - a folder with ``softmax_fc_gpu_0.pt`` … or ``checkpoint_gpu_0.pt`` … of arcface_torch, a file of each of the
          processes that have trained;
        - such files in the order of their ranks.

        On shards all processes give the same, and see the same files.
    drop_bias : bool
        Leave out a bias beside the weight. False: a bias that is not 0 raises, since losses over cosines have none.

    Raises
    ------
    ValueError, TypeError, FileNotFoundError
        A file of a rank is missing, damaged or holds no weight; another number of classes or columns; a bias; a row
        with NaN or inf; proxies on the "meta" device. Nothing has been loaded then.
    ShardError
        It has been raised on another process.

    Notes
    -----
    Files are read with ``weights_only=True``: nothing in them is run. They are mapped into memory, so that each process
    reads its own rows. The state of an optimiser stays as it is: make the optimiser afterwards.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import ArcFaceLoss, load_class_matrix
    >>> head = torch.nn.Linear(64, 1000, bias=False)
    >>> loss_function = ArcFaceLoss(num_classes=1000, embedding_size=64)
    >>> load_class_matrix(loss_function, head)
    >>> torch.equal(loss_function.W.T, head.weight)
    True
    """
    if not isinstance(loss, ClassMatrixLoss):
        raise TypeError(
            f"loss must be one with a class matrix, such as ArcFaceLoss, got {type(loss).__name__}: give the loss that "
            "is within it"
        )
    check_held(loss)
    parts: list[Tensor] = []
    held = loss._class_matrix()
    first, last = (place * (loss.centers or 1) for place in loss.shards.shard_bounds(loss.num_classes))

    def check() -> dict[str, Tensor | None]:
        if held.is_meta:
            raise ValueError(f"the proxies of {type(loss).__name__} are on the meta device: call shard_classes first")
        parts.extend(_weight(*part, drop_bias) for part in _parts(source))
        _check_shapes(parts, loss.num_classes * (loss.centers or 1), loss)
        for place, rows in _rows(parts, first, last):
            finite = torch.isfinite(rows.to(held.dtype)).all(1)
            if not finite.all():
                row = first + place + int(finite.logical_not().nonzero()[0])
                raise ValueError(f"row {row} of source has NaN or inf in {held.dtype}: take an earlier checkpoint")
        return {}

    loss.shards.agree(check, {})
    for place, rows in _rows(parts, first, last):
        held[place : place + len(rows)] = rows.to(held.device)
    if loss.first_embeddings:
        loss.taken.fill_(loss.first_embeddings)


def _parts(source: Any) -> Iterator[tuple[str, Any]]:
    """The content of the source, or of each of its files, with a name for messages."""
    if isinstance(source, Tensor | Mapping | nn.Module):
        yield "source", source.state_dict() if isinstance(source, nn.Module) else source
        return
    files = _files(Path(source)) if isinstance(source, str | PathLike) else [Path(file) for file in source]
    for file in files:
        try:  # files of PyTorch before 1.6 are no archives, and cannot be mapped
            yield fspath(file), torch.load(file, "cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise ValueError(
                f"{file} is damaged, or holds more than tensors, numbers and texts, of which nothing was run: save the "
                "weight alone, by torch.save of its state_dict"
            ) from error


def _files(source: Path) -> list[Path]:
    """A file, or those of arcface_torch in a folder in the order of their ranks."""
    if not source.is_dir():
        return [source]
    found = {stem: {path.name for path in source.glob(f"{stem}*.pt")} for stem in _STEMS}
    stems = [stem for stem in _STEMS if found[stem]]
    if len(stems) != 1:
        either = " and ".join(f"{stem}*.pt" for stem in _STEMS)
        raise FileNotFoundError(
            f"{source} has {'both' if stems else 'neither of'} {either}: give the files in the order of their ranks"
        )
    names = [f"{stems[0]}{rank}.pt" for rank in range(len(found[stems[0]]))]
    if missing := sorted(set(names) - found[stems[0]]):
        raise FileNotFoundError(
            f"{source} has {len(names)} files {stems[0]}*.pt, and no {missing[0]}: copy those of all processes there"
        )
    return [source / name for name in names]


def _weight(name: str, content: Any, drop_bias: bool) -> Tensor:
    """The matrix (n, D) of a tensor or ``state_dict``."""
    if isinstance(content, Mapping):
        content = content.get("state_dict_softmax_fc", content)
        if "weight" not in content:
            keys = ", ".join(map(str, list(content)[:8])) or "nothing"
            raise ValueError(
                f"{name} has no 'weight', it has {keys}: give the matrix itself, such as state['fc.weight']"
            )
        bias = content.get("bias")
        if bias is not None and not drop_bias and bias.any():
            raise ValueError(
                f"{name} has a bias, and a loss over cosines has none: give drop_bias=True to leave it out, or train "
                "the head without one"
            )
        content = content["weight"]
    return check_matrix(name, content)


def _check_shapes(parts: list[Tensor], rows: int, loss: ClassMatrixLoss) -> None:
    """Raise unless the parts together have ``rows`` rows of the embeddings' size."""
    D, found = loss.embedding_size, sum(map(len, parts))
    shapes = ", ".join(str(tuple(part.shape)) for part in parts[:8])
    differ = f"source has the shapes {shapes}, {found} rows in all, and {type(loss).__name__} needs ({rows}, {D})"
    if rows != D and [part.shape for part in parts] == [(D, rows)]:
        raise ValueError(f"{differ}: transpose it")
    if found != rows or any(part.shape[1] != D for part in parts):
        raise ValueError(
            f"{differ}: give the files of all processes, or make the loss with the sizes of the head, whose classes "
            "grow_classes then changes"
        )


def _rows(parts: list[Tensor], first: int, last: int) -> Iterator[tuple[int, Tensor]]:
    """Rows ``first:last`` of all parts a chunk at a time, each with its place behind ``first``."""
    start = 0
    for part in parts:
        begin, end = max(first, start), min(last, start + len(part))
        for place in range(begin, end, _ROWS):
            yield place - first, part[place - start : min(end, place + _ROWS) - start]
        start += len(part)
