"""What a miner found, where the batch is that of several processes: each takes the pairs of its own samples."""

import torch
from torch import Tensor

from robustdml_ops.engine.shards import OneProcess
from robustdml_ops.losses.peer.miner_indices import check_indices


def own_pairs(shards: OneProcess, indices_tuple: object, own_rows: Tensor, n: int, m: int) -> tuple[Tensor, ...]:
    """Of pairs or triplets those whose anchors are own samples; all places are those of the batch of all processes.

    Each process gives the pairs of its own samples, or all of them give all pairs.
    """
    vectors: list[Tensor] = []

    def check() -> dict[str, Tensor | None]:
        vectors.extend(check_indices(indices_tuple, n, m))
        return {"samples": own_rows}

    shards.agree(check, {})
    place, here = shards.place(), []
    for side in _sides(vectors):
        chosen = (side[0] >= place.start) & (side[0] < place.stop)
        here += [vector[chosen] for vector in side]
    given, used = (sum(len(side[0]) for side in taken) for taken in (_sides(vectors), _sides(here)))
    fingerprint = _fingerprint(vectors)
    total = shards.count(torch.tensor([given, used], device=own_rows.device))
    extremes = shards.least(torch.tensor([fingerprint, -fingerprint], device=own_rows.device))
    (all_given, all_used), (least, most) = total.tolist(), extremes.tolist()
    # Those of own samples on each, or one list on all of them.
    if all_used != all_given and not (least == -most and all_used == given):
        raise ValueError(
            f"indices_tuple of this process lists {given} pairs or triplets, {used} of them with own samples as "
            f"anchors, which are samples {place.start} … {place.stop - 1} of the batch of all processes, and all "
            f"together have {all_used} such: give each process those of its own samples, or all of them all pairs"
        )
    return tuple(here)


def _fingerprint(vectors: list[Tensor]) -> int:
    """A number of 62 bits that differs, most likely, where the lists do."""
    found = 0
    for vector in vectors:
        places = torch.arange(1, len(vector) + 1, device=vector.device)
        found = (found * 1_000_003 + int(((vector + 1) * places * 2_654_435_761).sum())) % 2**62
    return found


def _sides(vectors: list[Tensor]) -> list[list[Tensor]]:
    """Triplets, or positive and negative pairs."""
    return [vectors] if len(vectors) == 3 else [vectors[:2], vectors[2:]]
