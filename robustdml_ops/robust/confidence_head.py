"""The confidence module of Smooth Proxy-Anchor: confidences of all classes from frozen features."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from robustdml_ops.engine.labels import check_label_range, check_labels
from robustdml_ops.engine.validation import check_matrix, check_sizes


class ConfidenceHead(nn.Module):
    """Two linear layers and a sigmoid that estimate how well a sample fits every class.

    The head is trained on noisy labels for a few epochs, then frozen. It has not memorised the wrong labels then: a
    mislabelled sample gets a low confidence c for its label and a high one for its true class.

    Weights start from Xavier's uniform distribution, biases from 0. Under autocast the matrix products run in its dtype
    and the sigmoid in float32.

    Source: Roig et al. 2020, "Smooth Proxy-Anchor Loss for Noisy Metric Learning", sections 3.4, 3.5 and 4.2.

    Parameters
    ----------
    in_features, num_classes, hidden_features : int
        Size of the features, F; number of classes, C; width of the hidden layer, K.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> features, labels = torch.randn(64, 8), torch.arange(64) % 4
    >>> head = ConfidenceHead(8, 4, hidden_features=16)
    >>> losses = head.fit(features, labels, epochs=2, batch_size=32)
    >>> head.frozen, head(features).shape
    (True, torch.Size([64, 4]))
    """

    def __init__(self, in_features: int, num_classes: int, hidden_features: int = 512) -> None:
        super().__init__()
        check_sizes(in_features=in_features, num_classes=num_classes, hidden_features=hidden_features)
        self.reduction = nn.Linear(in_features, hidden_features)
        self.classifier = nn.Linear(hidden_features, num_classes)
        for layer in (self.reduction, self.classifier):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    @property
    def frozen(self) -> bool:
        """Whether the head is frozen."""
        return not any(parameter.requires_grad for parameter in self.parameters())

    def freeze(self) -> None:
        """Stop training for good: no parameter requires a gradient, and the head stays in eval mode."""
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> "ConfidenceHead":
        """As `torch.nn.Module.train`, but a frozen head stays in eval mode."""
        super().train(mode and not self.frozen)
        return self

    def forward(self, features: Tensor) -> Tensor:
        """Confidences of all classes, (B, C) in [0, 1], float32 or the parameters' wider dtype, of features (B, F)."""
        check_matrix("features", features, columns=self.reduction.in_features)
        logits = self._logits(features)
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).sigmoid()

    @torch.no_grad()
    def factors(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return factors of the confidences ``sigmoid(hidden @ weight.T + bias)``, for losses that form no B×C matrix.

        They are (B, K), (C, K) and (C,), detached; weight and bias share memory with the head.
        """
        check_matrix("features", features, columns=self.reduction.in_features)
        hidden = self.reduction(features).relu()
        return hidden, self.classifier.weight.detach(), self.classifier.bias.detach()

    def fit(
        self,
        features: Tensor,
        labels: Tensor,
        *,
        epochs: int = 12,
        batch_size: int = 256,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-2,
        seed: int = 0,
        on_epoch: Callable[[int, float], None] | None = None,
    ) -> list[float]:
        """Train with binary cross-entropy on the (noisy) labels, then freeze; returns the mean loss of each epoch.

        Parameters
        ----------
        features : Tensor
            (N, F), floating point, on any device, detached; batches are moved to the head's device and dtype.
        labels : Tensor
            (N,), integers in 0..C-1.
        epochs, batch_size : int
            Passes over the samples, few: the head must not memorise wrong labels. A step keeps B×C logits and their
            gradient.
        learning_rate, weight_decay : float
            Settings of AdamW. The paper's rate is 1e-4, with many more steps than 12 epochs.
        seed : int
            Of the order of the samples.
        on_epoch : callable, optional
            Called after each epoch with its number, from 1, and its mean loss.

        Raises
        ------
        ValueError, TypeError, IndexError
            Wrong shapes, dtypes, settings or labels, no samples, features that are not finite.
        RuntimeError
            The head is frozen.
        """
        check_matrix("features", features, columns=self.reduction.in_features)
        labels = check_labels(labels, features, of="features")
        if len(features) == 0:
            raise ValueError("features: no samples to fit")
        if not features.isfinite().all():
            raise ValueError("features hold NaN or infinite values; drop or repair those rows before fitting")
        check_label_range(labels.cpu(), self.classifier.out_features)
        check_sizes(epochs=epochs, batch_size=batch_size)
        if self.frozen:
            raise RuntimeError("the head is frozen; make a new ConfidenceHead to train again")
        self.train()
        weight = self.classifier.weight
        optimizer = torch.optim.AdamW(self.parameters(), lr=learning_rate, weight_decay=weight_decay)
        generator = torch.Generator().manual_seed(seed)
        losses = []
        for epoch in range(1, epochs + 1):
            total = torch.zeros((), device=weight.device, dtype=torch.float64)
            for rows in torch.split(torch.randperm(len(features), generator=generator, device="cpu"), batch_size):
                batch = features[rows.to(features.device)].detach().to(weight)
                own = labels[rows.to(labels.device)].to(weight.device)
                # Binary cross-entropy, mean over B×C; softplus(z) - z·[y=c] needs no one-hot matrix.
                logits = self._logits(batch)
                of_labels = logits.gather(1, own[:, None])
                loss = (functional.softplus(logits).sum() - of_labels.sum()) / logits.numel()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total += loss.detach() * len(rows)
            losses.append(float(total) / len(features))
            if on_epoch is not None:
                on_epoch(epoch, losses[-1])
        self.freeze()
        return losses

    def _logits(self, features: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.reduction(features).relu())
        return logits
