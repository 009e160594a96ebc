"""What losses take beside the embeddings, batch by batch."""

from collections.abc import Callable

from robustdml_ops.recipes.loss_inputs.base import LossInput, Training
from robustdml_ops.recipes.loss_inputs.confidences import Confidences
from robustdml_ops.recipes.loss_inputs.guidance import LanguageGuidance
from robustdml_ops.recipes.loss_inputs.labels import Labels
from robustdml_ops.recipes.loss_inputs.memory import Memory
from robustdml_ops.recipes.loss_inputs.self_paced import SelfPacedWeights
from robustdml_ops.recipes.methods import METHODS

__all__ = ["LOSS_INPUTS", "LossInput", "Training", "make_loss_inputs"]

# What losses take beyond embeddings and labels, by the name that `Method.inputs` has for it.
LOSS_INPUTS: dict[str, Callable[[Training], LossInput]] = {
    "labels": Labels,
    "confidences": Confidences,
    "memory": Memory,
    "guidance": LanguageGuidance,
    "self_paced_weights": SelfPacedWeights,
}


def make_loss_inputs(training: Training) -> dict[str, LossInput]:
    """Make the inputs that the method of a run asks for.

    Parameters
    ----------
    training : Training
        What they are made of.

    Returns
    -------
    dict
        By name.
    """
    config = training.config
    return {name: LOSS_INPUTS[name](training) for name in METHODS[config.method].inputs(config.options)}
