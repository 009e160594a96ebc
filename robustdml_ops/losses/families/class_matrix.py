"""Losses that compare samples with a class matrix, which is a parameter: one row, or column, for each class."""

import math
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from robustdml_ops.backends.dispatch import compute_dtype
from robustdml_ops.engine.labels import ABSENT, are_several, check_label_range, class_labels
from robustdml_ops.engine.proxy_update import BOUND, ProxyUpdate, owner_of, update_of
from robustdml_ops.engine.rows.backends import cosines_at, normalized
from robustdml_ops.engine.shards import OwnRows, is_sharded
from robustdml_ops.engine.validation import (
    SimilarityLimits,
    check_cosine,
    check_finite_embeddings,
    check_matrix,
    check_same_device,
    check_sizes,
)
from robustdml_ops.losses.families.metric_loss import MetricLoss
from robustdml_ops.losses.first_embeddings import take_first
from robustdml_ops.losses.first_steps import FirstSteps
from robustdml_ops.losses.inputs import ClassLabels, LossInputs, own_samples, refuse_candidates, several_labels
from robustdml_ops.losses.options import ClassMatrixOptions
from robustdml_ops.losses.peer.package import dense_logits
from robustdml_ops.losses.sampling import Drawn, negatives_of

# The limit of ``drop_similar_negatives`` that is the sample's cosine with its own class, or what chance may bring.
OWN = "own"


class StepRows(NamedTuple):
    """Rows of the class matrix in a step: of all classes, of a shard, or of the drawn classes."""

    matrix: Tensor  # (M, D) or (M, H, D); with an update the whole shard, of which the sweep takes update.rows
    labels: Any  # (B,) int64, places among the M classes or ELSEWHERE; None: the loss takes no labels
    update: ProxyUpdate | None  # the optimiser's step on these rows; None: autograd has their gradient
    drawn: Drawn | None  # None: all classes here


class ClassMatrixLoss(MetricLoss):
    """A loss with the parameter ``matrix_name``: (C, D), or (D, C) if ``columns``."""

    known_options = ClassMatrixOptions
    ignores_by_weight = True
    shown: ClassVar[tuple[str, ...]] = ("num_classes", "embedding_size")
    matrix_name: ClassVar[str] = "proxies"
    columns: ClassVar[bool] = False
    taken: Tensor  # (C,) int32, with first_embeddings: embeddings that each class has taken
    centers: int | None = None  # H, where a class has several rows, or columns

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        weight_init_func: Any = None,
        drop_similar_negatives: float | str | None = None,
        first_embeddings: int = 0,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        check_sizes(num_classes=num_classes, embedding_size=embedding_size)
        check_sizes(0, first_embeddings=first_embeddings)
        negatives = negatives_of(options)
        super().__init__(**options)
        if drop_similar_negatives is not None:
            self._refuse_dense("drop_similar_negatives")
            if drop_similar_negatives != OWN:
                check_cosine(drop_similar_negatives)
        self.drop_similar_negatives = drop_similar_negatives
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self.negatives = negatives
        self.negative_share = 1.0 if negatives is None else negatives.share
        if negatives is not None:
            self._refuse_dense("negative_share")
        if dtype not in (None, torch.float32, torch.float64, torch.bfloat16):
            raise ValueError(f"dtype={dtype}: proxies are torch.float32, torch.float64 or torch.bfloat16")
        self.proxy_dtype = dtype
        self.first_embeddings = first_embeddings
        if first_embeddings:
            self._refuse_dense("first_embeddings")
            self.register_buffer("taken", torch.zeros(num_classes, dtype=torch.int32))
        self.weight_init_func = weight_init_func or self.get_default_weight_init_func()
        self.first_steps = FirstSteps()

    def _add_class_matrix(self, rows: int) -> None:
        """Make the parameter, filled by ``weight_init_func``; ``rows`` counts the classes or centres."""
        D = self.embedding_size
        # A draw reads classes here and there, whose values then lie side by side.
        is_turned = self.columns and self.negatives is not None
        shape = (D, rows) if self.columns and not is_turned else (rows, D)
        matrix = torch.empty(*shape, dtype=self.proxy_dtype)
        parameter = nn.Parameter(matrix.t() if is_turned else matrix)
        setattr(self, self.matrix_name, parameter)
        # Of independent numbers the order does not matter, and PyTorch fills what lies in order several times faster.
        self.weight_init_func(matrix if self.weight_init_func is nn.init.normal_ else parameter)

    def fill_parameter(self, name: str, values: Tensor) -> None:
        """Fill a parameter with its initial values, in place."""
        self.weight_init_func(values)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Leave out seed and step of sampled negatives, where this loss has all classes."""
        if self.negatives is None and state_dict.pop(f"{prefix}negatives.state", None) is not None:
            warnings.warn(
                f"{prefix}negatives.state was saved by a loss with sampled negatives, and this {type(self).__name__} "
                "has all classes: it is left out. To go on with the same draws, give the negative_share of that loss",
                stacklevel=2,
            )
        if self.first_embeddings:  # proxies of a state without these numbers have been trained
            state_dict.setdefault(f"{prefix}taken", torch.full_like(self.taken, self.first_embeddings))
        elif state_dict.pop(f"{prefix}taken", None) is not None:
            warnings.warn(
                f"{prefix}taken was saved by a loss whose proxies begin as embeddings, and this {type(self).__name__} "
                "leaves classes without a sample as they are. To go on, give the first_embeddings of that loss",
                stacklevel=2,
            )
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def get_default_weight_init_func(self) -> Any:
        """Return the function that fills a new class matrix, in place."""
        return nn.init.normal_

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Logits of ``embeddings`` (B, D) with all classes, before any margin: (B, C), materialised.

        Proxy-Anchor losses have cosines, softmax losses cosines times their scale, ProxyNCALoss squared distances.
        """
        return self._logits(embeddings) if self._dense_reason() is None else dense_logits(self, embeddings)

    def class_dimensions(self) -> dict[str, int]:
        """Parameters with entries for each class, and the dimension that counts the classes."""
        return {self.matrix_name: int(self.columns), **({"taken": 0} if self.first_embeddings else {})}

    def _logits(self, embeddings: Tensor) -> Tensor:
        raise NotImplementedError

    def _signature(self, inputs: LossInputs) -> tuple[Sequence[Any], tuple[Any, ...]]:
        (embeddings, *others), settings = super()._signature(inputs)
        parameter = self._parameters.get(self.matrix_name)
        bound = id(owner_of(parameter)) if BOUND and parameter is not None else None
        return (embeddings, parameter, *others), (*settings, bound)

    def _is_plain(self, tensors: Sequence[Any]) -> bool:
        _, parameter, labels, ref_emb, ref_labels, _, _, label_weights = tensors
        negatives = self.negatives if self.training else None
        options = (ref_emb, ref_labels, label_weights, negatives, self.drop_similar_negatives, self._update())
        plain = parameter is not None and labels is not None and all(option is None for option in options)
        plain = plain and not (self.training and self.first_embeddings)
        return plain and super()._is_plain(tensors)

    def _own_rows(self, inputs: LossInputs) -> OwnRows:
        labels, weights = self._checked_labels(inputs)
        if labels.dim() == 1:
            check_label_range(labels, self.num_classes)
        return {**self._own_samples(inputs), "labels": labels, "label_weights": weights}

    def _own_samples(self, inputs: LossInputs) -> OwnRows:
        dtype = compute_dtype(inputs.embeddings, self._class_parameter())
        return own_samples(inputs.embeddings, inputs.sample_weights, dtype)

    def _checked_labels(self, inputs: LossInputs) -> ClassLabels:
        """Classes of inputs whose shapes, types and devices fit."""
        self._check_shapes(inputs)
        embeddings, labels, weights = inputs.embeddings, inputs.labels, inputs.label_weights
        if are_several(labels):
            dtype = compute_dtype(embeddings, self._class_parameter())
            return several_labels(labels, weights, embeddings, self.num_classes, dtype)
        if weights is not None:
            raise ValueError(
                "label_weights are of labels (B, K), several for a sample: leave them out beside labels (B,), or "
                "take sample_weights"
            )
        return ClassLabels(class_labels(labels, embeddings))

    def _check_shapes(self, inputs: LossInputs) -> None:
        """Raise where embeddings do not fit the class matrix, or a reference set is given."""
        refuse_candidates(f"{type(self).__name__} compares samples with its own proxies", inputs)
        check_matrix("embeddings", inputs.embeddings, columns=self.embedding_size)
        check_same_device(embeddings=inputs.embeddings, **self._parameters)

    def _class_parameter(self) -> nn.Parameter:
        """The parameter of the class matrix, of all classes."""
        parameter: nn.Parameter = getattr(self, self.matrix_name)
        return parameter

    def _take_first(self, embeddings: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        """Let classes whose proxies have not begun take the embeddings of this step, (B, D), with labels of all."""
        if not self.first_embeddings or not self.training:
            return
        if not torch.compiler.is_compiling():
            check_finite_embeddings(embeddings)  # a step that fails writes nothing
        if labels.dim() == 1:
            check_label_range(labels, self.num_classes)
        absent = labels < 0 if weights is None else (labels < 0) | (weights <= 0).view(-1, *(1,) * (labels.dim() - 1))
        places, update = torch.where(absent, ABSENT, self.shards.to_local_labels(labels)), self._update()
        version = None if update is None else update.version()
        with torch.no_grad():
            matrix = self._class_matrix()
            X = normalized(embeddings.detach(), compute_dtype(embeddings, matrix), self.backend)
            if labels.dim() == 2:
                X, places = X.repeat_interleave(labels.shape[1], 0), places.flatten()
            take_first(matrix, self.taken, X, places, self.first_embeddings)
        if update is not None:
            update.wrote_unit_rows(version)

    def _step_rows(self, embeddings: Tensor, labels: Tensor | None) -> StepRows:
        """The rows of a step with ``labels`` (B,)."""
        matrix, update = self._shard()
        if self.negatives is None or labels is None or not self.training:
            if labels is not None:
                labels = self.shards.to_local_labels(labels)
            return StepRows(matrix, labels, update, None)
        here = self.shards.shard_bounds(self.num_classes) if self.shards.divided else None
        if not torch.compiler.is_compiling():
            check_finite_embeddings(embeddings)  # a step that fails draws nothing
        drawn = self.negatives.draw(labels, self.num_classes, here)
        matrix, update = self.negatives.rows(matrix, drawn, update)
        return StepRows(matrix, drawn.labels, update, drawn)

    def _similarity_limits(
        self, embeddings: Tensor, rows: StepRows, gamma: float | None = None
    ) -> float | SimilarityLimits | None:
        """The limit of the similarities of negatives, one or of each sample (B,); ``gamma``: of pooled centres."""
        limit = self.drop_similar_negatives
        if not isinstance(limit, str):
            return limit
        by_chance = chance_cosine(self.num_classes, self.embedding_size)
        return SimilarityLimits(self._own_similarity(embeddings, rows, gamma).clamp(min=by_chance))

    def _own_similarity(self, embeddings: Tensor, rows: StepRows, gamma: float | None) -> Tensor:
        """Similarity of each sample with its class, or the nearest of them, (B,); ∞ where it has no class."""
        matrix, labels, update = rows.matrix, rows.labels, rows.update
        X, places = embeddings.to(compute_dtype(embeddings, matrix)), labels
        if matrix.dim() == 3:
            H = matrix.shape[1]
            places = labels.clamp(min=-1)[..., None] * H + torch.arange(H, device=labels.device)  # ABSENT · H overflows
            matrix = matrix.flatten(0, 1)
        if update is not None and update.rows is not None and len(update.rows):
            places = torch.where(places < 0, places, update.rows[places.clamp(min=0)])
        cosines = cosines_at(matrix, X, places, self.backend)
        if rows.matrix.dim() == 2 and labels.dim() == 1 and not self.shards.divided:
            return cosines
        if rows.matrix.dim() == 3:
            # Of a class's centres the largest cosine, or the mean weighted by softmax(cosine / gamma).
            weighted = None if gamma is None else torch.softmax(cosines / gamma, -1) * cosines
            cosines = cosines.amax(-1) if weighted is None else weighted.sum(-1).nan_to_num(-torch.inf)
        nearest = cosines.amax(1) if labels.dim() == 2 else cosines
        return (-self.shards.min_over_processes(-nearest)).nan_to_num(torch.inf, torch.inf, torch.inf)

    def _shard(self) -> tuple[Tensor, ProxyUpdate | None]:
        """The rows of this process, (C, D) or (C, H, D), a view in plain memory; and the optimiser's step on them."""
        update = self._update()
        parameter = self._class_parameter()
        if is_sharded(parameter) and not self.shards.divided:
            raise TypeError(
                f".{self.matrix_name} of {type(self).__name__} is a DTensor that shard_classes has not made: after "
                "fully_shard call the loss within the forward of the module that was wrapped, or wrap the loss itself; "
                "or leave it out of FSDP, and divide its classes by robustdml_ops.distributed.shard_classes"
            )
        rows: Tensor = self.shards.local_shard(parameter) if update is None else update.local
        if self.columns and rows.dim() == 2:
            rows = rows.t()
            if self.centers is not None:
                rows = rows.reshape(-1, self.centers, rows.shape[1])
        return rows, update

    def _class_matrix(self) -> Tensor:
        matrix = self._shard()[0]
        return matrix if self.centers is None else matrix.flatten(0, 1)

    def _common_settings(self) -> dict[str, object]:
        update, settings = self._update(), super()._common_settings()
        if self.negatives is not None and self.negatives.state.device.type == "cpu":  # of a GPU it would wait
            settings["seed and step of its negatives"] = self.negatives.state.tolist()
        return {**settings, **({} if update is None else update.settings)}

    def _update(self) -> ProxyUpdate | None:
        if torch.compiler.is_compiling() or not BOUND or not self.training:
            return None
        return update_of(self._class_parameter())


def chance_cosine(C: int, D: int) -> float:
    """The cosine that one random vector in ten exceeds with the nearest of C random rows."""
    return math.sqrt(1 - C ** (-2 / (D - 1))) if D > 1 else 1.0
