"""AdaFace, Kim et al. 2022: a margin by the quality of an image, for which the length of its embedding stands."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import Never

from robustdml_ops.backends.dispatch import compute_dtype
from robustdml_ops.engine.validation import check_finite_numbers, check_positive, check_sample_weights
from robustdml_ops.losses.arcface import cosine_of_sum
from robustdml_ops.losses.families.margins import MarginSoftmaxLoss
from robustdml_ops.losses.inputs import LossInputs
from robustdml_ops.losses.options import Backend, Reduction, SoftmaxOptions, shared

# Lengths of embeddings are taken as at least and at most these.
SHORTEST, LONGEST = 1e-3, 100.0
ANGLES = (1e-3, torch.pi - 1e-3)


class AdaFaceLoss(MarginSoftmaxLoss):
    """AdaFace: hard samples weigh more where the image is good, easy ones where it is bad.

        ℓ_i = −log( e^{s f(θ_y)} / (e^{s f(θ_y)} + Σ_{k≠y} e^{s cos θ_k}) )
        f(θ) = cos(θ − m z) − (m z + m),   θ − m z within 0.001 … π − 0.001
        z = clip(h (‖x‖ − μ) / (σ + 0.001), −1, 1)

    μ and σ are running means of the mean and the deviation of the lengths ‖x‖ in a batch, updated in training; z is a
    constant. Give embeddings that are not normalised: equal lengths make it CosFace with margin m.

    Source: Kim, Jain, Liu, "AdaFace: Quality Adaptive Margin for Face Recognition", CVPR 2022, Eqs. 13–15; where μ and
    σ begin, and the limits of lengths and angle, are the authors' code's.

    Parameters
    ----------
    num_classes, embedding_size : int
        Number of classes C, and length of an embedding D. ``.W`` is a parameter (D, C): one column for each class.
    margin : float
        m, in radians and of the cosine.
    scale : float
        s > 0, an inverse temperature.
    concentration : float
        h > 0: the share of its deviation by which a length counts.
    momentum : float
        In (0, 1], the weight of a batch in μ and σ.
    reduction : {"mean", "none"}
        ``"mean"``: the loss, (). ``"none"``: one loss per sample, (B,), times its weight.
    backend : {"native", "triton", "eager", "auto"}, optional
        Who computes. None and auto: the fastest that serves the device.
    ignore_index : int, optional
        Samples with this label are absent, as samples of weight 0 are; on pairs rows of ``ref_emb``, too.
    distance : str or object, optional
        Name of a distance, such as "cosine", or a distance of pytorch-metric-learning, see docs/compatibility.md. None:
        the cosine, or the loss's own.
    reducer : object, optional
        A reducer of pytorch-metric-learning; see docs/compatibility.md.
    embedding_regularizer : object, optional
        A regulariser of pytorch-metric-learning, of the embeddings.
    embedding_reg_weight : float
        Weight of ``embedding_regularizer``. Default 1.0.
    collect_stats : bool, optional
        Whether pytorch-metric-learning's distance and reducer keep their statistics.
    weight_regularizer : object, optional
        A regulariser of pytorch-metric-learning, of the class matrix.
    weight_reg_weight : float
        Weight of ``weight_regularizer``. Default 1.0.
    weight_init_func : callable, optional
        Fills the class matrix in place. None: as pytorch-metric-learning, ``normal_`` or in Proxy-Anchor losses
        ``kaiming_normal_(mode="fan_out")``.
    negative_share : float
        In (0, 1]: the share of the classes outside the batch that a training step computes with, drawn anew each step,
        see docs/large-classes.md; 1: all. Default 1.0.
    negative_seed : int
        Seed ≥ 0 of the draws; seed and step are in the ``state_dict``. Default 0.
    drop_similar_negatives : float or "own", optional
        In (−1, 1]: negatives whose cosine with the sample exceeds this are left out, as they may be of its class, with
        a wrong label or under another name. "own": the limit of each sample is its cosine with its own class, or with
        the nearest of several, and at least t_C of docs/equations.md. The selection is constant in the gradients. None:
        all negatives stay.
    first_embeddings : int
        Above 0: a row of the class matrix that no sample has met begins in training as the first embedding of its
        class, of length 1, in the step that meets it, and as the mean direction of the first few if this is above 1,
        which helps where labels are wrong. ``.taken`` (C,) counts them. See
        :func:`~robustdml_ops.losses.start_class_matrix`. Default 0.
    dtype : torch.dtype, optional
        Type in which the class matrix is made: ``torch.bfloat16`` takes two bytes an element at all times, where
        ``loss.bfloat16()`` takes six while it converts. None: PyTorch's default.
    negative_correction : bool
        With a ``negative_share``: whether a class that was drawn counts for those that it stands for, the logarithmic
        correction. False: the form of Partial FC. Default True.
    label_smoothing : float
        ε in [0, 1]: the targets are (1 − ε) of the label and ε/C of each class, as those of ``F.cross_entropy``. Not
        beside ``negative_share`` or ``drop_similar_negatives``. Default 0.0.
    weight : Tensor, optional
        (C,), ≥ 0: weights of the classes, as of ``F.cross_entropy``: ``"mean"`` divides by the sum of the samples'. A
        buffer. No gradient. None: 1.
    **unknown
        Refused, with the name that was probably meant.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import AdaFaceLoss
    >>> loss_function = AdaFaceLoss(num_classes=1000, embedding_size=64)
    >>> loss_function(20 * torch.randn(32, 64), torch.randint(1000, (32,))).backward()
    """

    takes_margins = False
    margin_kind = "quality"
    margin: float
    mean_length: Tensor
    length_deviation: Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.4,
        scale: float = 64,
        concentration: float = 0.333,
        momentum: float = 0.01,
        *,
        reduction: Reduction = "mean",
        backend: Backend | None = None,
        ignore_index: int | None = None,
        distance: Any = None,
        reducer: Any = None,
        embedding_regularizer: Any = None,
        embedding_reg_weight: float = 1.0,
        collect_stats: bool | None = None,
        weight_regularizer: Any = None,
        weight_reg_weight: float = 1.0,
        weight_init_func: Any = None,
        negative_share: float = 1.0,
        negative_seed: int = 0,
        drop_similar_negatives: float | Literal["own"] | None = None,
        first_embeddings: int = 0,
        dtype: torch.dtype | None = None,
        negative_correction: bool = True,
        label_smoothing: float = 0.0,
        weight: Tensor | None = None,
        **unknown: Never,
    ) -> None:
        super().__init__(num_classes, embedding_size, margin, scale, **shared(SoftmaxOptions, locals()))
        check_finite_numbers(margin=margin)
        check_positive(concentration=concentration, momentum=momentum)
        if momentum > 1:
            raise ValueError(f"momentum must be at most 1, got {momentum}")
        self._refuse_dense("AdaFace's margin")
        self.concentration, self.momentum = concentration, momentum
        for name, value in self.initial_buffers().items():
            self.register_buffer(name, value)

    def initial_buffers(self) -> dict[str, Tensor]:
        """Values that buffers begin with, which the meta device does not hold."""
        return {"mean_length": torch.tensor(20.0), "length_deviation": torch.tensor(100.0)}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "AdaFaceLoss":
        """Leave the running lengths in float32 at least, in which small changes of them add up."""
        before = self.mean_length, self.length_deviation
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.mean_length.dtype.itemsize < 4:
            self.mean_length, self.length_deviation = (length.to(self.mean_length.device) for length in before)
        return self

    def _planned(self, tensors: Sequence[Any], settings: tuple[Any, ...]) -> Tensor | None:
        """With the qualities of the samples as margins; the running lengths move if there is a loss."""
        embeddings = tensors[0]
        matrix = isinstance(embeddings, Tensor) and embeddings.dim() == 2 and embeddings.is_floating_point()
        if not matrix or embeddings.layout is not torch.strided or not self._is_plain(tensors):
            return None
        z, running = self._qualities(embeddings, tensors[5])
        loss = super()._planned((*tensors[:6], z, *tensors[7:]), settings)
        if loss is not None:
            self._follow(running)
        return loss

    def _margins(self, inputs: LossInputs, labels: Tensor) -> Tensor:
        """The quality z of each sample, (B,), or (B, 1) for labels (B, K)."""
        z = inputs.margins  # of a plan
        if z is None:
            z, running = self._qualities(inputs.embeddings, inputs.sample_weights)
            self._follow(running)
        return z if labels.dim() == 1 else z[:, None]

    @torch.no_grad()
    def _qualities(self, embeddings: Tensor, sample_weights: Tensor | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The quality z of each sample, (B,), and mean and deviation of the lengths with those of this batch."""
        dtype = compute_dtype(embeddings, self.W)
        lengths = torch.linalg.vector_norm(embeddings.to(dtype), dim=1).clamp(SHORTEST, LONGEST)
        running = self.mean_length, self.length_deviation
        if self.training:
            running = self._running(lengths, sample_weights)
        mean, deviation = running
        z = self.concentration * (lengths - mean) / (deviation + 1e-3)
        return z.clamp(-1, 1).to(dtype), running

    def _running(self, lengths: Tensor, sample_weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """The running mean and deviation after the samples that are present, if they are two or more."""
        if sample_weights is None:
            if len(lengths) < 2:
                return self.mean_length, self.length_deviation
            deviation, mean = torch.std_mean(lengths)
            weight = torch.full_like(mean, self.momentum)
        else:
            present = (check_sample_weights(sample_weights, lengths) > 0).to(lengths)
            number = present.sum()
            mean = (present * lengths).sum() / number.clamp(min=1)
            deviation = ((present * (lengths - mean).square()).sum() / (number - 1).clamp(min=1)).sqrt()
            weight = torch.where(number > 1, self.momentum, 0.0)

        def followed(old: Tensor, new: Tensor) -> Tensor:
            return old.lerp(new.to(old), weight.to(old))

        return followed(self.mean_length, mean), followed(self.length_deviation, deviation)

    @torch.no_grad()
    def _follow(self, running: tuple[Tensor, Tensor]) -> None:
        """Keep the running mean and deviation, where these are new ones."""
        if running[0] is not self.mean_length:
            # By a view: compiled graphs of PyTorch 2.13 drop what is written to a float64 tensor () itself.
            self.mean_length.view(1).copy_(running[0])
            self.length_deviation.view(1).copy_(running[1])

    def _moved(self, cosines: Tensor, margins: Tensor) -> Tensor:
        angles = -self.margin * margins
        with torch.no_grad():
            wanted = torch.acos(cosines.clamp(-1, 1)) + angles
            ends = wanted.clamp(*ANGLES)
        moved = torch.where(wanted == ends, cosine_of_sum(cosines, angles), ends.cos())
        return moved - self.margin * (1 + margins)
