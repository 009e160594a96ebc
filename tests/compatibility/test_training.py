"""The same seed gives the same run: 20 steps of pytorch-metric-learning's own trainer with its miners."""

import pytest
import torch
from peers import NAMES, D, batch
from pytorch_metric_learning import losses as theirs
from pytorch_metric_learning import miners, trainers

import robustdml_ops.losses as ours
from tests.nightly import nightly_but

STEPS = 20
MINERS = {
    "no miner": lambda: None,
    "multi-similarity": miners.MultiSimilarityMiner,
    "pair margin": miners.PairMarginMiner,
    "batch easy hard": lambda: miners.BatchEasyHardMiner(pos_strategy="hard", neg_strategy="semihard"),
    "triplets": miners.TripletMarginMiner,
}


def run(module, name, miner):
    torch.manual_seed(0)
    X, y = batch(0, 240)
    data = torch.utils.data.TensorDataset(X.detach(), y)
    trunk = torch.nn.Sequential(torch.nn.Linear(D, 16), torch.nn.ReLU(), torch.nn.Linear(16, D)).double()
    loss = getattr(module, name)(**NAMES[name]).double()
    found = MINERS[miner]()
    optimizers = {"trunk_optimizer": torch.optim.SGD(trunk.parameters(), lr=0.01)}
    if list(loss.parameters()):
        optimizers["metric_loss_optimizer"] = torch.optim.Adam(loss.parameters(), lr=0.01)
    recorded = []
    trainer = trainers.MetricLossOnly(
        {"trunk": trunk},
        optimizers,
        batch_size=32,
        loss_funcs={"metric_loss": loss},
        dataset=data,
        mining_funcs={} if found is None else {"tuple_miner": found},
        iterations_per_epoch=STEPS,
        dataloader_num_workers=0,
        data_device=torch.device("cpu"),
        end_of_iteration_hook=lambda trainer: recorded.append(float(trainer.losses["total_loss"].detach())),
    )
    trainer.train(num_epochs=1)
    return recorded


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True")  # the trainer's progress bar
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("miner", nightly_but(["triplets"], MINERS))
def test_the_same_run(name, miner):
    """In float64: in float32 a miner's limit may fall between the roundings of two equal distances."""
    torch.use_deterministic_algorithms(False)
    mine, others = (torch.tensor(run(module, name, miner)) for module in (ours, theirs))
    assert len(mine) == STEPS
    torch.testing.assert_close(mine, others, rtol=1e-6, atol=1e-6)
