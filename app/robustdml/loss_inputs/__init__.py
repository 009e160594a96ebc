"""What losses take beside the embeddings, batch by batch."""

from collections.abc import Callable

from robustdml.loss_inputs.base import LossInput, Training
from robustdml.loss_inputs.confidences import Confidences
from robustdml.loss_inputs.guidance import LanguageGuidance
from robustdml.loss_inputs.labels import Labels
from robustdml.loss_inputs.memory import Memory
from robustdml.loss_inputs.self_paced import SelfPacedWeights
from robustdml.methods import METHODS

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
    """Make the inputs that the method of a run asks for."""
    config = training.config
    return {name: LOSS_INPUTS[name](training) for name in METHODS[config.method].inputs(config.options)}
