"""The training loop: from noisy labels to an embedding, in one phase or two, with checkpoints and metrics."""

import json
import math
import zlib
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch

from robustdml.cache import LOCK, sole_use, write_text
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData
from robustdml.errors import UsageError
from robustdml.evaluation import untouched_metrics
from robustdml.methods import METHODS, Method
from robustdml.networks.preparation import prepare, resolve_device
from robustdml.progress import OnProgress, Recorder, silent
from robustdml.retrieval import check_retrieval, retrieval_metrics
from robustdml.run.checkpoint import (
    CHECKPOINT,
    check_folder,
    read_checkpoint,
    restore,
    save_checkpoint,
    start_in,
    write_history,
)
from robustdml.run.preemption import EndSignals, Pauses
from robustdml.run.result import TrainingResult, result_of
from robustdml.run.run import Run
from robustdml.run.stages import choose_second_stage, is_between_stages
from robustdml.run.trials import prepare_run
from robustdml.trained.embedder import MODEL_FILE
from robustdml.world import ALONE, World


def train(
    config: TrainingConfig,
    data: RetrievalData,
    *,
    out: Path | None = None,
    resume: bool = False,
    device: str = "auto",
    on_progress: OnProgress = silent,
    recorders: Sequence[Recorder] = (),
    untouched: dict[str, float] | None = None,
    evaluate_each_epoch: bool = True,
    may_keep_features: bool = True,
    checkpoint_every: float | None = None,
    world: World = ALONE,
    method: Method | None = None,
) -> TrainingResult:
    """Train an embedding and evaluate it on the test split after every epoch.

    A run that is interrupted and resumed gives the same bits as one that is not, on the CPU. With `out`, SIGTERM and
    SIGUSR1 in the main thread end it by a ``SystemExit`` with status 75, after a checkpoint of the step under way.
    Settings, data and folder that do not fit together, a folder that another process is training in, and a loss that is
    no longer finite raise `UsageError`.

    Parameters
    ----------
    config : TrainingConfig
        Settings.
    data : RetrievalData
        Training and test split; with `Split.true_labels` the report says how well the run tells wrong labels.
    out : Path, optional
        Folder for ``checkpoint.pt``, ``history.jsonl``, ``metrics.json`` and ``model.pt``.
    resume : bool
        Go on from the checkpoint in `out`.
    device : str
        ``auto``, ``cpu``, ``cuda``, …
    on_progress : callable
        Called with what is being done, the steps done and the steps in all.
    recorders : sequence of Recorder
        Told of the beginning, of every step and of every epoch.
    untouched : dict, optional
        Metrics of the untouched features, by a caller who has them from another run on the same features.
    evaluate_each_epoch : bool
        False to evaluate after the last epoch alone: on much test data evaluation takes longer than training.
    may_keep_features : bool
        False where embeddings have to be learnt, even if no way to learn them gains anything on held-out classes.
    checkpoint_every : float, optional
        Seconds between the checkpoints within an epoch; None: there is one after each epoch alone.
    world : World
        The processes that train it together, each with a part of every batch; the first of them writes.
    method : Method, optional
        The configured method with further inputs, such as ``margins``.

    Examples
    --------
    >>> from robustdml.data import load_data
    >>> result = train(TrainingConfig(method="smooth-proxy-anchor"), load_data("glyphs"))  # doctest: +SKIP
    """
    if resume and out is None:
        raise UsageError("resume needs the folder of the run (out)")
    if checkpoint_every is not None and (out is None or not 0 < checkpoint_every < math.inf):
        needed = "the folder of the run (out)" if out is None else "a positive number of seconds"
        raise UsageError(f"checkpoint_every={checkpoint_every} needs {needed}")
    check_retrieval(data.test.labels)  # before hours of features
    kept = out if world.leads else None
    if kept is not None:
        check_folder(kept, resume)
    chosen, signals = resolve_device(device), EndSignals()
    with (
        nullcontext() if kept is None else sole_use(kept / LOCK, kept),
        # Seeds are set inside a fork, so that a caller's own random numbers go on as if nothing had run.
        torch.random.fork_rng(devices=[chosen] if chosen.type == "cuda" else []),
        nullcontext() if out is None else signals,
    ):
        torch.manual_seed(config.seed)
        world.require_same({**config.flat(), "resume": resume, "a folder is given": out is not None, **_traits(data)})
        if world.size > 1 and METHODS[config.method].has_stages:
            raise UsageError(f"method {config.method} trains on one process: train without torchrun")
        prepared = world.first(lambda: prepare(config, data, chosen, on_progress))
        checkpoint = read_checkpoint(out / CHECKPOINT) if resume and out is not None else None
        start = None if checkpoint is None else start_in(checkpoint, config, prepared)
        if start is None:
            on_progress("choosing the start", 0, 0)
        run = Run(config, prepared, chosen, method, world, start)
        if untouched is None:
            untouched = untouched_metrics(run.prepared, chosen, on_progress)
        run.can_keep_features &= may_keep_features
        if checkpoint is not None and out is not None:
            restore(out / CHECKPOINT, checkpoint, run)
            world.require_same({"what the checkpoint has done": run.position})
            epochs = run.epoch + (run.under_way.steps > 0)
            if epochs > config.epochs:
                raise UsageError(f"{out} is after {run.position} already; ask for at least {epochs} epochs (epochs)")
            on_progress(f"goes on after {run.position}", 0, 0)
            if kept is not None:  # A run may have been killed between the checkpoint and the history of an epoch.
                write_history(kept, run)

        def save() -> None:
            state = run.state()
            if kept is not None:
                save_checkpoint(kept / CHECKPOINT, run, state)
                write_history(kept, run)

        pauses = Pauses(run, None if out is None else save, checkpoint_every, signals)
        try:
            if not resume:
                prepare_run(run, on_progress)
            for recorder in recorders:
                recorder.start(run.history, run.epochs)
            signals.held = True
            while run.epoch < run.epochs:
                if is_between_stages(run):
                    signals.unless_received(partial(choose_second_stage, run, on_progress))
                    pauses()  # It ends here where a signal broke that off.
                run.take_steps(on_progress, recorders, pauses)
                metrics: dict[str, float] | None = {}
                if evaluate_each_epoch or run.epoch + 1 == run.epochs:
                    metrics = signals.unless_received(lambda: run.evaluate(retrieval_metrics))
                    pauses()  # No metrics: it ends here.
                run.end_epoch(metrics or {})
                for recorder in recorders:
                    recorder.epoch(run.history[-1])
                pauses.save()
            signals.held = False
        finally:
            for recorder in recorders:
                recorder.close()
        result = result_of(run, untouched, out)
        if kept is not None:
            result.model.save(kept / MODEL_FILE)
            write_text(kept / "metrics.json", json.dumps(result.summary, indent=2) + "\n")
    return result


def _traits(data: RetrievalData) -> dict[str, object]:
    """Name, content and checksums of the labels: data of one name may differ between processes."""
    splits = {"training": data.train, "test": data.test}
    labels = {f"the checksum of {name} labels": zlib.crc32(split.labels.tobytes()) for name, split in splits.items()}
    return {"data": data.name, "the content of the data": data.content, **labels}
