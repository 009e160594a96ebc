"""The training loop: from noisy labels to an embedding, in one phase or two, with checkpoints and metrics."""

import json
import math
import os
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustdml.arrays import Ints, Labels, Mask, Singles
from robustdml.cache import LOCK, check_writable, sole_use, write_text
from robustdml.config import RANDOM, TrainingConfig
from robustdml.data import RetrievalData
from robustdml.errors import UsageError, reason_of
from robustdml.evaluation import below_untouched, still_rising, untouched_metrics
from robustdml.networks.models import Embedder
from robustdml.networks.preparation import Prepared, prepare, resolve_device
from robustdml.networks.start import Start
from robustdml.plain_files import DamagedError, read_plain, save_plain
from robustdml.progress import OnProgress, Recorder, silent
from robustdml.retrieval import retrieval_metrics
from robustdml.run.preemption import EndSignals, Pauses
from robustdml.run.run import Run
from robustdml.run.sample_log import clean_auc
from robustdml.run.trials import prepare_run
from robustdml.trained.embedder import IDENTITY, LINEAR, MODEL_FILE, ModelCard, TrainedEmbedder
from robustdml.world import ALONE, World
from robustdml_ops.ops import nearest

CHECKPOINT, PREVIOUS_CHECKPOINT = "checkpoint.pt", "checkpoint.previous.pt"
CHECKPOINT_FORMAT = 8
# Test samples that the report shows, and how many of those found.
EXAMPLES, FOUND = 6, 5
# The first of these that a run has is its clean score in reports and comparisons.
CLEAN_SCORES = ("log_p_clean_auc", "label_quality_auc", "confidence_auc", "detector_loss_auc", "weight_auc")


@dataclass(frozen=True)
class TrainingResult:
    """A finished run."""

    config: TrainingConfig
    # One record an epoch: loss, seconds, `evaluation.METRICS` where it was evaluated, means of the learnt margins.
    history: list[dict[str, float]]
    embedder: Embedder  # The trained network in eval mode; takes features where the backbone was frozen
    model: TrainedEmbedder  # The same with backbone and preprocessing; embeddings of length 1
    changed: Mask  # Which training labels are wrong, (N,)
    # Scores of each training label in the last epoch, (N,) by name, NaN where there is none: `confidence` of Smooth
    # Proxy-Anchor; `log_p_clean` or `label_quality`, and `kept`, of a filter; `sigma`, `detector_loss` and
    # `above_threshold` of ProcSim; `weight` of BSPML.
    scores: dict[str, Singles]
    # Settings, sizes of the test split, final metrics, and the AUC of each score against the true labels; `untouched`,
    # the metrics before training; `below_untouched`, a warning if the run ended below them; and `still_rising`.
    summary: dict[str, Any]
    retrieved: Ints  # Some test samples, each with those most similar to it, (n, 1 + k)
    left_out: tuple[str, ...]  # What was left out of the data, with the reason


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
        prepared = world.first(lambda: prepare(config, data, chosen, on_progress))
        checkpoint = _read_checkpoint(out / CHECKPOINT) if resume and out is not None else None
        start = None if checkpoint is None else _start_of(checkpoint, config, prepared)
        if start is None:
            on_progress("choosing the start", 0, 0)
        run = Run(config, prepared, chosen, world=world, start=start)
        if untouched is None:
            untouched = untouched_metrics(run.prepared, chosen, on_progress)
        run.can_keep_features &= may_keep_features
        if checkpoint is not None and out is not None:
            _restore(out / CHECKPOINT, checkpoint, run)
            epochs = run.epoch + (run.under_way.steps > 0)
            if epochs > config.epochs:
                raise UsageError(f"{out} is after {run.position} already; ask for at least {epochs} epochs (epochs)")
            on_progress(f"goes on after {run.position}", 0, 0)
            if kept is not None:  # A run may have been killed between the checkpoint and the history of an epoch.
                _write_history(kept, run)

        def save() -> None:
            state = run.state()
            if kept is not None:
                save_checkpoint(kept / CHECKPOINT, run, state)
                _write_history(kept, run)

        pauses = Pauses(run, None if out is None else save, checkpoint_every, signals)
        try:
            if not resume:
                prepare_run(run, on_progress)
            for recorder in recorders:
                recorder.start(run.history, run.epochs)
            signals.held = True
            while run.epoch < run.epochs:
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
        result = _result(run, untouched, out)
        if kept is not None:
            result.model.save(kept / MODEL_FILE)
            write_text(kept / "metrics.json", json.dumps(result.summary, indent=2) + "\n")
    return result


def check_folder(out: Path, resume: bool) -> None:
    """Refuse a folder that a run cannot be kept in, before anything is done."""
    check_writable(out)
    path = out / CHECKPOINT
    if resume and not path.exists():
        raise UsageError(f"{path}: no checkpoint to resume from; drop --resume to start anew")
    if not resume and path.exists():
        raise UsageError(f"{out} holds a run already: resume it, or give another folder")
    others = [name for name in (MODEL_FILE, "metrics.json", "report.html") if (out / name).exists()]
    if others and not resume:
        raise UsageError(f"out {str(out)!r}: holds {' and '.join(others)}, and no checkpoint; give another folder")


def save_checkpoint(path: Path, run: Run, state: dict[str, Any]) -> None:
    """Write the state of a run; the one before is kept under another name, and at every moment there is a whole one."""
    if path.exists():
        second_name = path.with_name(f".{PREVIOUS_CHECKPOINT}")
        second_name.unlink(missing_ok=True)
        try:
            os.link(path, second_name)
        except OSError:  # not every disk gives a file two names
            shutil.copyfile(path, second_name)
        os.replace(second_name, path.with_name(PREVIOUS_CHECKPOINT))
        # After a kill the previous checkpoint may be this file already, and then renaming does nothing.
        second_name.unlink(missing_ok=True)
    about = {"format": CHECKPOINT_FORMAT, "config": run.config.as_dict(), "data": run.data_summary}
    save_plain(path, {**about, "state": state})


def _read_checkpoint(path: Path) -> dict[str, Any]:
    try:
        content = read_plain(path, "checkpoint", checked=True)
    except DamagedError as error:
        previous = path.with_name(PREVIOUS_CHECKPOINT)
        if not previous.exists():
            raise
        raise DamagedError(f"{error}. The one before it is {previous.name}: call it {path.name}, and resume") from error
    if not isinstance(content, dict) or content.get("format") != CHECKPOINT_FORMAT:
        raise UsageError(f"{path}: not a checkpoint of format {CHECKPOINT_FORMAT}")
    if not all(isinstance(content.get(part), dict) for part in ("config", "data", "state")):
        raise UsageError(f"{path}: a checkpoint with parts missing")
    return content


def _start_of(content: dict[str, Any], config: TrainingConfig, prepared: Prepared) -> Start | None:
    """Return the start in a checkpoint if it fits these features: choosing it anew would judge all labels again."""
    start = content["state"].get("start")
    weight = start.get("weight") if isinstance(start, dict) else None
    if config.layer_start == RANDOM or not isinstance(weight, Tensor) or weight.shape[1:] != (prepared.num_features,):
        return None
    return Start(len(weight), weight.double(), {})


def _restore(path: Path, content: dict[str, Any], run: Run) -> None:
    changes = run.config.differences(content["config"])
    if content["data"] != run.data_summary:
        changes.append(f"data: {content['data']} then, {run.data_summary} now")
    if changes:
        raise UsageError(f"{path} is of another run; give the same settings or another folder. {'; '.join(changes)}")
    try:
        run.load_state(content["state"])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UsageError(f"{path}: not the state of this run ({type(error).__name__}: {reason_of(error)})") from error


def _write_history(out: Path, run: Run) -> None:
    write_text(out / "history.jsonl", "".join(json.dumps(record) + "\n" for record in run.history))


def _result(run: Run, untouched: dict[str, float], out: Path | None) -> TrainingResult:
    config = run.config
    model = _model(run)
    samples_of_class = np.bincount(run.prepared.data.test.labels)
    summary: dict[str, Any] = {
        "method": config.method,
        "noise": run.prepared.data.noise,
        "seed": config.seed,
        "data": run.data_summary,
        # Samples that are alone in their class find nothing, and are no queries.
        "test": {
            "samples": int(samples_of_class.sum()),
            "classes": int((samples_of_class > 0).sum()),
            "alone": int((samples_of_class == 1).sum()),
            "trained_on": not {*run.prepared.data.test.class_names}.isdisjoint(run.prepared.data.train.class_names),
        },
        **{key: value for key, value in run.history[-1].items() if key != "seconds"},
        "embedding_size": model.embedding_size,
        "averaging": run.averaging,
        "filter": run.filter_options.kind,
        "learning_rate": run.rates[0],
        "chosen": run.chosen,
        "training_seconds": run.phase_one_seconds + sum(record["seconds"] for record in run.history),
    }
    scores = run.scores()
    summary |= {f"{name}_auc": clean_auc(name, score, run.changed) for name, score in scores.items()}
    summary["clean_auc"] = next((summary[name] for name in CLEAN_SCORES if name in summary), None)
    summary |= {"untouched": untouched, "below_untouched": below_untouched(run.history[-1], untouched)}
    summary["still_rising"] = still_rising(run.history, out)
    embedder = run.averaged().eval()
    left_out = run.prepared.data.left_out
    found = run.evaluate(_retrieve)
    return TrainingResult(config, run.history, embedder, model, run.changed, scores, summary, found, left_out)


def _retrieve(embeddings: Singles, labels: Labels, device: torch.device) -> Ints:
    rows = torch.from_numpy(embeddings).to(device)
    some = torch.arange(0, len(rows), max(len(rows) // EXAMPLES, 1), device=device)[:EXAMPLES]
    # Each finds itself first, or a copy of it.
    return nearest(rows[some], rows, min(FOUND + 1, len(rows))).indices.cpu().numpy()


def _model(run: Run) -> TrainedEmbedder:
    """Put what made the features below the embedding layer, so that the whole takes the data as they were given."""
    origin = run.prepared.origin
    network = Embedder(origin.backbone, run.prepared.num_features, None)
    network.head = run.averaged().head
    trained_by = {"config": run.config.as_dict(), "data": run.data_summary, "metrics": run.history[-1]}
    card = ModelCard(
        backbone=origin.name,
        input_shape=origin.input_shape,
        num_features=run.prepared.num_features,
        embedding_size=run.prepared.num_features if run.keeps_features else run.embedding_size,
        class_names=run.prepared.data.train.class_names,
        trained_by=trained_by,
        package_version=import_module("robustdml_ops").__version__,
        layer=IDENTITY if run.keeps_features else LINEAR,
    )
    return TrainedEmbedder(network, card).eval()
