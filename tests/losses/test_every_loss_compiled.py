"""Every loss under torch.compile in one graph, and through torch.export: the numbers of eager mode."""

from copy import deepcopy

import pytest
import torch
from torch.export import Dim

from robustdml_ops import losses
from tests.every_call import LOSSES, C, D, of_loss, random
from tests.nightly import nightly_but

# In the short suite: over classes test_label_smoothing.py and test_compiled_transforms.py compile more.
EXPORTED = ("SubCenterArcFaceLoss", "MultiSimilarityLoss")
COMPILED = ("AdaptiveProxyAnchorLoss, sampled", "InfoNCELoss", "MultiSimilarityLoss")
SAMPLED = {"negative_share": 0.2, "negative_seed": 3}
MORE = 5 * C  # classes than there are samples
VARIANTS = LOSSES | {
    "SubCenterArcFaceLoss, sampled": of_loss(lambda: losses.SubCenterArcFaceLoss(MORE, D, **SAMPLED)),
    "AdaptiveProxyAnchorLoss, sampled": of_loss(lambda: losses.AdaptiveProxyAnchorLoss(MORE, D, **SAMPLED)),
    "ArcFaceLoss, own": of_loss(lambda: losses.ArcFaceLoss(C, D, drop_similar_negatives="own")),
    "ProxyAnchorLoss, own": of_loss(lambda: losses.ProxyAnchorLoss(C, D, drop_similar_negatives="own")),
    "ProcSimLoss, mean": of_loss(lambda: losses.ProcSimLoss(C, D, dml="proxy-nca", threshold="mean")),
    "ProcSimLoss, gmm": of_loss(lambda: losses.ProcSimLoss(C, D, dml="proxy-nca", threshold="gmm")),
}


def results(function, call, inputs):
    """The loss, with the gradients of what it differentiates and of its parameters."""
    inputs = inputs | {name: inputs[name].detach().requires_grad_() for name in call.differentiable}
    loss = function(**inputs)
    leaves = [inputs[name] for name in call.differentiable]
    module = getattr(function, "_orig_mod", function)
    leaves += [parameter for parameter in module.parameters() if parameter.requires_grad]
    return [loss.detach(), *torch.autograd.grad(loss, leaves, allow_unused=True)]


def first_rows(inputs, B):
    """A batch of B rows, made of the call's."""
    return {name: torch.cat([value, value])[:B] for name, value in inputs.items()}


@pytest.mark.parametrize(
    ("training", "dynamic"),
    [(True, True), *(pytest.param(mode, False, marks=pytest.mark.nightly) for mode in (True, False))],
)
@pytest.mark.parametrize("name", nightly_but(COMPILED, VARIANTS))
def test_compiled(name, training, dynamic):
    torch._dynamo.reset()
    torch.manual_seed(0)
    call = VARIANTS[name]
    eager = call.make().train(training)
    compiled_module = call.make().train(training)
    compiled_module.load_state_dict(eager.state_dict())
    compiled = torch.compile(compiled_module, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    weights = {} if name.startswith("ProcSimLoss") else {"sample_weights": torch.linspace(0, 2, 8, dtype=torch.float64)}
    for B, more in ((8, {}), (5, {}), (11, {}), (8, weights)):
        inputs = first_rows(call.inputs() | more, B)
        torch.testing.assert_close(results(compiled, call, inputs), results(eager, call, inputs))
    assert_same_buffers(compiled_module, eager)


@pytest.mark.parametrize(
    ("training", "strict"),
    [
        (True, True),
        *(pytest.param(*modes, marks=pytest.mark.nightly) for modes in ((False, True), (True, False), (False, False))),
    ],
)
@pytest.mark.filterwarnings("ignore:(Attempted to insert a get_attr Node|Node lifted_)")  # of 2.6, its own
@pytest.mark.parametrize("name", nightly_but(EXPORTED, LOSSES))
def test_exported(name, training, strict):
    """For batches of one size; traced by PyTorch's compiler (``strict``), also for batches of any size."""
    if strict and torch.__version__.startswith("2.6."):
        pytest.skip("PyTorch 2.6 exports with strict=False alone: it traces no object that a class has")
    torch._dynamo.reset()
    call = LOSSES[name]
    eager = call.make().train(training)
    inputs = call.inputs()
    shapes = {key: {0: Dim("B", min=1, max=64)} for key in inputs} if strict else None
    exported = torch.export.export(deepcopy(eager), (), inputs, dynamic_shapes=shapes, strict=strict).module()
    for B in (8, 5, 2, 1) if strict else (8,):
        batch = first_rows(inputs, B)
        torch.testing.assert_close(exported(**batch), eager(**batch))
    assert_same_buffers(exported, eager)


def test_a_compiled_loss_refuses_what_is_not_finite():
    """With a message of its own, where eager mode would name the row."""
    for name in ("SuperContrastiveLoss", "LanguageGuidanceLoss"):
        torch._dynamo.reset()
        compiled = torch.compile(LOSSES[name].make(), fullgraph=True, backend="aot_eager")
        with pytest.raises(RuntimeError, match="embeddings has NaN or inf; run this batch in eager mode"):
            LOSSES[name](compiled, embeddings=random(8, 6).log())


def assert_same_buffers(module, eager):
    buffers = dict(module.named_buffers())
    for name, buffer in eager.named_buffers():
        torch.testing.assert_close(buffers[name], buffer)
