"""Inputs of all processes, gathered where the classes or pairs of a loss are sharded."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.engine.shards import OneProcess
from robustdml_ops.losses.inputs import LossInputs
from robustdml_ops.losses.peer.miner_indices import check_indices


def joint_inputs(loss: Any, inputs: LossInputs, check: Callable[[LossInputs], dict[str, Tensor | None]]) -> LossInputs:
    """Gather the rows that ``check`` returns for this process; raises on all processes where it raises on one."""
    shards: OneProcess = loss.shards
    if inputs.ref_labels is inputs.labels:  # gathering makes another tensor of the labels
        inputs = inputs._replace(ref_labels=None)
    listed = inputs.indices_tuple
    length = len(listed) if isinstance(listed, tuple | list) else listed is not None
    settings = {**loss._common_settings(), "indices_tuple": length, "the reference set": _reference(inputs)}
    rows = shards.agree(partial(check, inputs), settings)
    weights = rows.pop("sample_weights", None)
    joint: dict[str, Any] = {name: shards.gather(value) for name, value in rows.items()}
    if inputs.ref_emb is inputs.embeddings:
        joint["ref_emb"] = joint["embeddings"]
    if listed is not None:
        n, ref_emb = len(joint["embeddings"]), joint.get("ref_emb", inputs.ref_emb)
        m = n if ref_emb is None else len(ref_emb)
        joint["indices_tuple"] = _own_pairs(shards, listed, rows["embeddings"], n, m)
    return inputs._replace(sample_weights=shards.gather(weights, not loss.weighs_losses), **joint)


def _reference(inputs: LossInputs) -> str:
    """Describe the candidates, which must be the same on all processes."""
    if inputs.ref_emb is None:
        return "not given"
    if hasattr(inputs.ref_emb, "to_local"):
        return "that of a divided bank"
    return "a view of own samples" if inputs.ref_labels is None else f"{tuple(inputs.ref_emb.shape)}, the same for all"


def _own_pairs(shards: OneProcess, indices_tuple: object, own_rows: Tensor, n: int, m: int) -> tuple[Tensor, ...]:
    """Pairs or triplets whose anchors are samples of this process, as places in the joint inputs."""
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
    # Each process lists the pairs of its own samples, or all have the same list.
    if all_used != all_given and not (least == -most and all_used == given):
        raise ValueError(
            f"indices_tuple of this process lists {given} pairs or triplets, {used} of them with own samples as "
            f"anchors, which are samples {place.start} … {place.stop - 1} of the batch of all processes, and all "
            f"together have {all_used} such: give each process those of its own samples, or all of them all pairs"
        )
    return tuple(here)


def _fingerprint(vectors: list[Tensor]) -> int:
    """A hash of 62 bits."""
    found = 0
    for vector in vectors:
        places = torch.arange(1, len(vector) + 1, device=vector.device)
        found = (found * 1_000_003 + int(((vector + 1) * places * 2_654_435_761).sum())) % 2**62
    return found


def _sides(vectors: list[Tensor]) -> list[list[Tensor]]:
    """Triplets, or positive and negative pairs."""
    return [vectors] if len(vectors) == 3 else [vectors[:2], vectors[2:]]
