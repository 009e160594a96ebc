"""The eleven losses that pytorch-metric-learning has, too: theirs and ours, by the same arguments."""

import pytorch_metric_learning.losses as theirs
import torch

import robustdml_ops.losses as ours

C, D = 9, 8

SIZES = {"num_classes": C, "embedding_size": D}
NAMES = {
    "ProxyAnchorLoss": SIZES,
    "ProxyNCALoss": SIZES,
    "NormalizedSoftmaxLoss": SIZES,
    "SoftTripleLoss": SIZES,
    "CosFaceLoss": SIZES,
    "ArcFaceLoss": SIZES,
    "SubCenterArcFaceLoss": SIZES,  # theirs takes the sizes by name alone
    "MultiSimilarityLoss": {},
    "ContrastiveLoss": {},
    "SupConLoss": {},
    "NTXentLoss": {},
}
MARGIN_NAMES = ("CosFaceLoss", "ArcFaceLoss", "SubCenterArcFaceLoss")
PAIR_NAMES = ("MultiSimilarityLoss", "ContrastiveLoss", "SupConLoss", "NTXentLoss")
CLASS_NAMES = tuple(name for name in NAMES if name not in PAIR_NAMES)


def both(name, *, seed=0, **options):
    """Ours and theirs from one seed; options that are callables make one object for each."""
    made = []
    for module in (ours, theirs):
        torch.manual_seed(seed)
        given = {key: value() if callable(value) else value for key, value in options.items()}
        made.append(getattr(module, name)(**NAMES[name], **given).double())
    return made


def batch(seed=0, B=24, classes=C, dtype=torch.float64):
    """Embeddings of different lengths near a few directions, and labels that leave some classes without a sample."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(classes, D, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes - 2, (B,), generator=generator)
    lengths = 0.5 + 2 * torch.rand(B, 1, generator=generator, dtype=torch.float64)
    X = (directions[labels] + torch.randn(B, D, generator=generator, dtype=torch.float64)) * lengths
    return X.to(dtype).requires_grad_(), labels


def values(loss_function, embeddings, *arguments, **options):
    """Loss, and its gradients for embeddings, a reference set and parameters."""
    loss = loss_function(embeddings, *arguments, **options)
    others = [given for given in arguments if isinstance(given, torch.Tensor) and given.requires_grad]
    inputs = [embeddings, *others, *loss_function.parameters()]
    return [loss, *torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)]


def assert_same(pair, *arguments, rtol=1e-9, **options):
    """Both losses give the same, gradients included."""
    both_values = (values(loss_function, *arguments, **options) for loss_function in pair)
    torch.testing.assert_close(*both_values, rtol=rtol, atol=1e-11)
