"""The call of a loss, on one process and where other processes have samples or classes of their own."""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from robustdml_ops.engine.labels import with_label
from robustdml_ops.engine.plan import Plan, Plans
from robustdml_ops.engine.shards import ONE_PROCESS, OneProcess, OwnRows, ShownSettings, settings_of
from robustdml_ops.engine.validation import check_choice
from robustdml_ops.losses.first_steps import Watch
from robustdml_ops.losses.inputs import LossInputs
from robustdml_ops.losses.observation import Observation, observed
from robustdml_ops.losses.options import REDUCTIONS, LossOptions, check_options
from robustdml_ops.losses.peer.interface import PeerInterface, without_label
from robustdml_ops.losses.peer.listed_pairs import check_indices
from robustdml_ops.losses.recorded_step import RecordedStep


class ShardableLoss(ShownSettings):
    """A loss of one process, or of the samples and classes of all; ``robustdml_ops.distributed`` sets ``shards``."""

    shards: OneProcess = ONE_PROCESS
    _plans: Plans | None = None
    _changes: int = 0  # how often an attribute has been set, which a recorded step compares
    observable: ClassVar[bool] = False
    _observation: Observation | None = None  # what calls fill

    def __setattr__(self, name: str, value: object) -> None:
        """Forget the plans, which have the settings in them; ``training`` is part of a signature."""
        if name != "training":
            self.__dict__["_changes"] = self._changes + 1
            if self._plans is not None:
                self._plans.known.clear()
        super().__setattr__(name, value)

    def recorded(self, *inputs: Tensor, **named: Tensor) -> RecordedStep:
        """Record a step as CUDA graphs; what it returns is called in place of the loss.

        A replay takes the host one launch for the value and one for the gradients, where a small step takes 9 or more.
        The graphs hold the memory of one step and a copy of its gradients.

        Parameters
        ----------
        *inputs, **named
            The tensors of a call of the loss, on a CUDA device: their shapes and types are those of all replays, their
            values are arbitrary. Call under autocast, and in training mode, where later calls are.

        Returns
        -------
        RecordedStep
            A function of the loss's arguments. Gradients are the caller's own: ``.grad`` may be kept or added to.
            Each backward is of the last call. Calls of other shapes, types or modes are plain steps of the loss, after
            one warning; once a setting changes or a parameter moves, all are, and the memory of the graphs is freed.

        Raises
        ------
        ValueError, TypeError
            Inputs that are no tensors or on another device; no gradient is wanted.
        RuntimeError
            The step cannot be recorded: an optimiser steps within its sweep, negatives are drawn, classes are divided,
            a reducer or the backend waits for the device; or ``torch.func`` or a capture is at work.

        Examples
        --------
        >>> import torch
        >>> from robustdml_ops.losses import ProxyAnchorLoss
        >>> loss = ProxyAnchorLoss(num_classes=1000, embedding_size=128)
        >>> if torch.cuda.is_available():
        ...     X, y = torch.randn(256, 128, device="cuda", requires_grad=True), torch.arange(256, device="cuda")
        ...     step = loss.cuda().recorded(X, y)
        ...     step(X, y).backward()
        """
        return RecordedStep(self, inputs, named)

    def observed(self) -> AbstractContextManager[Observation]:
        """Observe calls of the loss: ``with loss.observed() as seen``.

        Value and gradients are those of a plain step, and no other sweep is made: each chunk of similarities is looked
        at once more while it is at hand. Other steps cost nothing more. Of sampled negatives, and of similar ones that
        are dropped, those that are left are seen. Of several labels of a sample its nearest class counts.

        Returns
        -------
        context manager of Observation
            Filled by each call of the loss within it, by way of whatever wraps it. On shards all processes observe, or
            none.

        Raises
        ------
        TypeError
            Losses of the Proxy-Anchor family, whose sums are over the batch, and losses made of others.
        RuntimeError
            In the call: it is compiled, or makes no sweep, as with pairs of a miner.

        Examples
        --------
        >>> import torch
        >>> from robustdml_ops.losses import NormalizedSoftmaxLoss
        >>> loss = NormalizedSoftmaxLoss(num_classes=2, embedding_size=2, temperature=1.0)
        >>> loss.W.data = torch.eye(2)
        >>> with loss.observed() as seen:
        ...     value = loss(torch.tensor([[0.6, 0.8]]), torch.tensor([0]))
        >>> seen.probability, seen.margin, seen.rank  # 1 / (1 + e^(0.8 − 0.6)), 0.6 − 0.8
        (tensor([0.4502]), tensor([-0.2000]), tensor([2]))
        """
        return observed(self)

    def _planned(self, tensors: Sequence[Any], settings: tuple[Any, ...]) -> Tensor | None:
        """The loss by the plan of this signature; None where it needs the general way."""
        plans = self._plans
        if plans is None:
            plans = self.__dict__["_plans"] = Plans()
        return plans.step(settings, tensors, partial(self._plan, tensors))

    def _plan(self, tensors: Sequence[Any]) -> Plan | None:
        """The plan of a step of ``tensors``; None: shapes, types or settings need the general way."""
        return None

    def class_dimensions(self) -> dict[str, int]:
        """Parameters with entries for each class, and the dimension that counts the classes."""
        return {}

    def _common_settings(self) -> dict[str, object]:
        """Numbers and names that must be equal on all processes."""
        observed = {} if self._observation is None else {"that it is observed": True}
        return settings_of(self) | observed  # type: ignore[arg-type]  # a module, by its other base class

    def _of_joint_batch(self, check: Callable[[], OwnRows], loss: Callable[..., Tensor]) -> Tensor:
        """``loss`` of the rows, by name, that ``check`` returns on each process."""
        rows = self.shards.agree(check, self._common_settings() if self.shards.divided else {})
        joint: dict[str, Any] = {name: self.shards.gather(values) for name, values in rows.items()}
        return self.shards.begin_backward(self.shards.guard(partial(loss, **joint)))


class MetricLoss(ShardableLoss, PeerInterface):
    """A loss of embeddings and labels; each family has its sums."""

    known_options: ClassVar[type] = LossOptions  # names of its keyword arguments
    weighs_losses: ClassVar[bool] = False  # every process computes the losses of all samples, and weighs them
    takes_margins: ClassVar[bool] = False
    takes_ids: ClassVar[bool] = False  # on pairs, of which a label in common makes positive ones
    ignores_by_weight: ClassVar[bool] = False  # samples of ``ignore_index`` are those of weight 0, and that is all
    first_steps: Watch | None = None  # looks whether training begins

    def __init__(
        self, *, reduction: str = "mean", backend: str | None = None, ignore_index: int | None = None, **options: Any
    ) -> None:
        check_options(type(self), self.known_options.__annotations__, {"reduction": reduction, **options})
        check_choice(REDUCTIONS, reduction=reduction)
        super().__init__(**options)
        self.reduction, self.backend, self.ignore_index = reduction, backend, ignore_index

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        *,
        sample_weights: Tensor | None = None,
        label_weights: Tensor | None = None,
        margins: Tensor | None = None,
        sample_ids: Tensor | None = None,
        ref_ids: Tensor | None = None,
        **unknown: Any,
    ) -> Tensor:
        """Loss of a batch: () or, with ``reduction="none"``, (B,), in the Proxy-Anchor family (C,).

        A sample without pairs adds 0. A batch that is empty, or has no sample of positive weight, gives 0, connected to
        the graph.

        Parameters
        ----------
        embeddings : Tensor
            (B, D), floating point, any scale.
        labels : Tensor
            (B,) integers in 0 … C − 1, truth values, or whole floating-point numbers. For losses on pairs any numbers,
            of which equal ones are of one class; not needed beside ``indices_tuple``. Several classes of a sample are
            integers (B, K), filled up with ``ops.ABSENT``, or a sparse matrix (B, C): for losses with a class matrix of
            weights; for losses on pairs of any numbers but 0, and a pair is positive if it shares a class. On several
            processes K must be the same.
        indices_tuple : tuple of Tensor, optional
            A miner's pairs (anchors, positives, anchors, negatives) or triplets (anchors, positives, negatives), places
            in the batch and among the candidates. Losses on pairs take exactly these pairs, whatever the labels are.
            With a class matrix, w_i is how often the miner chose sample i, divided by the largest count: softmax losses
            multiply the sample's loss by w_i, Proxy-Anchor losses its exponentials by e^(w_i − 1).
        ref_emb, ref_labels : Tensor, optional
            Of losses on pairs alone, (m, D) and (m,): rows of a memory bank or of another batch, see the class.
            Differentiable; rows that need no gradient cost none. The label ``ops.ABSENT`` marks a row that takes no
            part, such as an empty slot. Where ``ref_labels`` is the very tensor ``labels``, or is not given, row i is
            another view of sample i and not among the candidates of sample i. On shards: the DTensors of a bank that is
            divided, plain tensors with the same rows on all processes, or another view of own samples.
        sample_weights : Tensor, optional
            (B,), ≥ 0 or truth values: multiply the samples' losses, or in Proxy-Anchor losses the exponentials, in both
            sums. Differentiable; in Proxy-Anchor losses where positive. A sample of weight 0 is absent, also among the
            candidates of the others, and the mean divides by the number of the other samples: so a mask of zeros and
            ones gives the loss of the batch without the samples that it drops.
        label_weights : Tensor, optional
            (B, K), ≥ 0: weights of labels (B, K). Differentiable. A class listed twice has the sum of both. None: the
            classes of a sample have equal weights that sum to 1. In Proxy-Anchor losses they are constants, multiply
            the exponentials of the positives, and are 1 by default; 0 makes the sample a negative of that class.
        margins : Tensor, optional
            Of losses with a margin alone: (B,) margins of the samples, in the unit of ``margin``, in its place.
            Differentiable.
        sample_ids, ref_ids : Tensor, optional
            Of losses on pairs alone: (B,) integers, and (m,) for rows of ``ref_emb`` with labels of their own, such as
            ``sample_ids`` of a memory bank. A pair of equal ids, as of two copies of an image, is neither positive nor
            negative. Negative: no id.
        **unknown
            Refused, with the name that was probably meant.

        Raises
        ------
        ValueError, TypeError
            Shapes, types or devices that do not fit, unknown arguments; on the CPU NaN or inf (on a GPU, where a check
            would stall the stream, the loss is NaN).
        IndexError
            On the CPU, a label out of range (on a GPU a device-side assertion), or a place of ``indices_tuple`` that is
            not there.
        """
        if margins is not None and not self.takes_margins:
            raise TypeError(f"{type(self).__name__} has no argument 'margins': leave it out, or take ArcFaceLoss")
        if not self.takes_ids and (sample_ids is not None or ref_ids is not None):
            name = "ref_ids" if sample_ids is None else "sample_ids"
            raise TypeError(f"{type(self).__name__} has no argument {name!r}, which losses on pairs have: leave it out")
        if unknown:
            check_options(type(self), inspect.signature(self.forward).parameters.keys() - {"unknown"}, unknown)
        given = (embeddings, labels, indices_tuple, ref_emb, ref_labels, sample_weights, margins, label_weights)
        inputs, loss = LossInputs(*given, sample_ids, ref_ids), None
        if self.ignore_index is not None:
            inputs = without_label(inputs, self.ignore_index)
        first = self.first_steps if self.training else None
        if first is not None and first.over:
            first = None
        if first is not None:
            first.look(self, inputs)
        seen = self._observation
        if seen is not None:
            seen.begin()
        elif indices_tuple is None and not torch.compiler.is_compiling():
            loss = self._planned(*self._signature(inputs))
        if loss is None:
            loss = self._general_loss(inputs)
        if seen is not None:
            ignored = isinstance(labels, Tensor) and self.ignore_index is not None
            seen.end(self, with_label(labels, self.ignore_index) if ignored else None)  # type: ignore[arg-type]
        if first is not None:
            first(self, inputs, loss)
        return loss

    def _signature(self, inputs: LossInputs) -> tuple[Sequence[Any], tuple[Any, ...]]:
        """Tensors of a planned step, those that may want gradients first; and what else tells its signature."""
        twins = (inputs.ref_emb is inputs.embeddings, inputs.ref_labels is inputs.labels)
        return (*inputs[:2], *inputs[3:8]), (self.training, twins, *self._peer_settings())

    def _is_plain(self, tensors: Sequence[Any]) -> bool:
        """Whether one fused sum of ``tensors``, reduced to its mean, is the loss, on one process."""
        regularized = self.embedding_regularizer is not None or self.weight_regularizer is not None
        ignored = self.ignore_index is None or self.ignores_by_weight
        plain = self.reduction == "mean" and ignored and not self.shards.divided
        return plain and not regularized and self.is_fused()

    def _general_loss(self, inputs: LossInputs) -> Tensor:
        embeddings = inputs.embeddings
        if inputs.label_weights is not None and self.takes_ids:
            raise ValueError(f"label_weights: {type(self).__name__} asks whether pairs share a label: leave them out")
        if isinstance(embeddings, Tensor) and embeddings.dtype == torch.float64 and not self.shards.divided:
            self._widen()
        if self.shards.divided:
            loss = self.shards.guard(self._fused_loss, self._joint_inputs(inputs))
            if self.weighs_losses and self.reduction == "none":
                loss = self.shards.take_own(loss)
        elif not self.is_fused():
            loss = self._loss_by_reducer(inputs)
        else:
            loss = self._fused_loss(inputs)
            regularized = self.embedding_regularizer is not None or self.weight_regularizer is not None
            loss = loss + self._regularization(embeddings) if regularized else loss
        return self.shards.begin_backward(loss, self._backward_check())

    def _backward_check(self) -> Callable[[Tensor], None] | None:
        """Check dL/dloss and a bound optimiser in backward, before anything is sent or updated."""
        return None

    def _joint_inputs(self, inputs: LossInputs) -> LossInputs:
        """Gather the samples of all processes; raises on all processes where it raises on one."""
        if inputs.ref_labels is inputs.labels:  # gathering makes another tensor of the labels
            inputs = inputs._replace(ref_labels=None)
        shards, listed = self.shards, inputs.indices_tuple
        length = len(listed) if isinstance(listed, tuple | list) else listed is not None
        settings = {**self._common_settings(), "indices_tuple": length, "the reference set": _reference(inputs)}
        rows = shards.agree(partial(self._own_rows, inputs), settings)
        scalars = {name: rows.pop(name, None) for name in ("sample_weights", "margins", "label_weights")}
        joint: dict[str, Any] = {name: shards.gather(value) for name, value in rows.items()}
        joint |= {name: shards.gather(value, not self.weighs_losses) for name, value in scalars.items()}
        if inputs.ref_emb is inputs.embeddings:
            joint["ref_emb"] = joint["embeddings"]
        if listed is not None:
            n, ref_emb = len(joint["embeddings"]), joint.get("ref_emb", inputs.ref_emb)
            m = n if ref_emb is None else len(ref_emb)
            joint["indices_tuple"] = _own_pairs(shards, listed, rows["embeddings"], n, m)
        return inputs._replace(**joint)

    def _widen(self) -> None:
        """Turn the parameters into float64 for good, as the peer does."""
        for parameter in self.parameters():
            if parameter.dtype != torch.float64:
                parameter.data = parameter.data.double()

    def _own_rows(self, inputs: LossInputs) -> OwnRows:
        """Rows that this process adds to the joint inputs, checked, by the names of their fields."""
        raise NotImplementedError

    def _fused_loss(self, inputs: LossInputs) -> Tensor:
        """The loss, (), or its terms, as ``reduction`` says."""
        raise NotImplementedError


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

    def check() -> OwnRows:
        vectors.extend(check_indices(indices_tuple, n, m))
        return {"samples": own_rows}

    shards.agree(check, {})
    place, here = shards.own_slice(), []
    for side in _sides(vectors):
        chosen = (side[0] >= place.start) & (side[0] < place.stop)
        here += [vector[chosen] for vector in side]
    given, used = (sum(len(side[0]) for side in taken) for taken in (_sides(vectors), _sides(here)))
    fingerprint = _fingerprint(vectors)
    total = shards.sum_over_processes(torch.tensor([given, used], device=own_rows.device))
    extremes = shards.min_over_processes(torch.tensor([fingerprint, -fingerprint], device=own_rows.device))
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
