"""The compiler around a whole step, and around transforms of torch.func: eager mode's numbers, or an error in words."""

import pytest
import torch

from tests.every_call import LOSSES
from tests.nightly import nightly_but

# The compiler looks at .grad of what is no leaf.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")

ONE_OF_EACH_SWEEP = ("AdaptiveProxyAnchorLoss", "ArcFaceLoss", "NTXentLoss")


def gradients_of_step(compiled, name):
    """Of a linear layer before the loss, and of the loss's parameters."""
    torch.manual_seed(0)
    call = LOSSES[name]
    loss, layers = call.make(), {key: torch.nn.Linear(6, 6).double() for key in call.differentiable}
    layers = layers if name != "SuperLoss" else {"losses": torch.nn.Identity()}
    inputs = call.inputs()
    leaves = {key: inputs[key].requires_grad_() for key in call.differentiable}

    def step(leaves):
        value = loss(**{**inputs, **{key: layers[key](leaf) for key, leaf in leaves.items()}})
        value.sum().backward()

    with torch._dynamo.config.patch(compiled_autograd=compiled):
        (torch.compile(step, backend="aot_eager") if compiled else step)(leaves)
    owners = [*loss.parameters(), *(weight for layer in layers.values() for weight in layer.parameters())]
    return [leaf.grad for leaf in (*leaves.values(), *owners)]


@pytest.mark.parametrize("name", nightly_but(ONE_OF_EACH_SWEEP, LOSSES))
def test_a_step_whose_backward_is_compiled_too(name):
    torch._dynamo.reset()
    torch.testing.assert_close(gradients_of_step(True, name), gradients_of_step(False, name))


# Of ordinary PyTorch alone.
TRACED = {"LanguageGuidanceLoss"}


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("name", nightly_but((*ONE_OF_EACH_SWEEP, *TRACED, "SuperContrastiveLoss"), LOSSES))
def test_a_compiled_transform_is_refused_in_words(name, fullgraph):
    torch._dynamo.reset()
    call = LOSSES[name]
    loss, inputs, key = call.make().eval(), call.inputs(), call.differentiable[0]
    gradient = torch.func.grad(lambda x: loss(**{**inputs, key: x}).sum())
    compiled = torch.compile(gradient, backend="eager", fullgraph=fullgraph)
    if name in TRACED:
        torch.testing.assert_close(compiled(inputs[key]), gradient(inputs[key]))
        return
    with pytest.raises(RuntimeError, match="over a loss or op of this package gives no gradient: take"):
        compiled(inputs[key])
