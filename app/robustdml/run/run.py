"""The state of a training run, and its epochs."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, replace
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from robustdml.arrays import Array, Labels, Rows, Singles
from robustdml.config import RANDOM, TrainingConfig
from robustdml.data.image_files import batches_of
from robustdml.data.samplers import ClassBalancedSampler, RandomSampler, make_sampler
from robustdml.errors import UsageError
from robustdml.filters.filter import KEPT, AuditFilter, Filter, PrismFilter
from robustdml.filters.options import AUDIT, NO_FILTER, OWN_CLASS, FilterOptions
from robustdml.filters.own_class import OwnClassVerdict
from robustdml.loss_inputs import LOSS_INPUTS, LossInput, Training
from robustdml.methods import METHODS, Method
from robustdml.networks.models import Embedder, apply_in_batches, as_tensor, embed_in_batches
from robustdml.networks.preparation import Prepared
from robustdml.networks.start import FEWEST_CLASSES, NARROWEST, Start
from robustdml.progress import OnProgress, Recorder
from robustdml.run.audited_labels import use_audit
from robustdml.run.beliefs import Beliefs, start_of
from robustdml.run.held_out import set_aside
from robustdml.run.optimizers import Optimizers
from robustdml.run.sample_log import SampleLog
from robustdml.run.under_way import OBSERVED_EVERY, SEEN, UnderWay
from robustdml.world import ALONE, World, whole
from robustdml_ops import backward_in_micro_batches
from robustdml_ops.ops import NotFiniteError

T = TypeVar("T")

# Fewer steps of training raise the default learning rate in proportion, at most MOST_RAISED times.
FULL_STEPS, MOST_RAISED = 120, 2.0


class Run:
    """One training run."""

    def __init__(
        self,
        config: TrainingConfig,
        prepared: Prepared,
        device: torch.device,
        method: Method | None = None,
        world: World = ALONE,
        start: Start | None = None,
    ) -> None:
        self.config, self.prepared, self.device, self.world = config, prepared, device, world
        self.history: list[dict[str, float]] = []
        self.phase_one_seconds = 0.0
        self.under_way = UnderWay()
        self.audited: dict[str, Any] | None = None
        if config.labels:
            prepared, self.audited = use_audit(config, prepared)
            self.prepared = prepared
        self.beliefs = Beliefs(prepared, device, world)
        split = prepared.data.train
        self.labels, self.changed = split.labels, split.labels != split.reference_labels
        if config.layer_start != RANDOM and start is None:
            start = start_of(config, prepared, self.beliefs, world, device)
        self.measured_widths = {} if start is None else start.measured
        self.embedding_size = (config.embedding_size or NARROWEST) if start is None else start.width
        self.embedder = Embedder(prepared.backbone, prepared.num_features, self.embedding_size)
        if start is not None and isinstance(self.embedder.head, nn.Linear):
            start.fill(self.embedder.head)
        self.embedder.to(device)
        self.start = deepcopy(self.embedder.head)
        self.averaging = 1.0 if config.averaging is None else config.averaging
        self.chosen: dict[str, Any] | None = None  # What trials have chosen, and from which evidence
        # Whether trials may choose the features for embeddings: nobody has asked for another size.
        self.can_keep_features = config.embedding_size in (None, prepared.num_features)
        self.keeps_features = False  # Whether the embeddings are the features, whatever was trained
        self.network = world.wrap(self.embedder)
        method = METHODS[config.method] if method is None else method
        # Samples of classes that a method of two stages leaves out of the first.
        self.aside = set_aside(self.labels, config.seed) if method.has_stages else np.zeros(len(self.labels), bool)
        self._use_loss((method.losses or (config.method,))[0], method)
        self._use_filter(config.filter_options)
        if world.size > 1 and (alone := [name for name, value in self.inputs.items() if value.of_one_process]):
            raise UsageError(f"method {config.method} takes {', '.join(alone)} of one process: train without torchrun")

    def choose(self, loss: str, options: FilterOptions, averaging: float, keeps_features: bool) -> None:
        """Train with the settings of the trials; `averaging` is the weight of the trained layer in its average."""
        self.averaging, self.keeps_features = averaging, keeps_features
        is_other = loss != self.loss_name
        if is_other:
            torch.manual_seed(self.config.seed)  # All processes draw the same proxies.
            self._use_loss(loss, METHODS[loss])
        if is_other or options != self.filter_options:
            self._use_filter(options)

    def _use_loss(self, name: str, method: Method) -> None:
        """Make the loss of a method, with its batches, learning rates and optimiser."""
        config, classes = self.config, self.prepared.data.train.num_classes
        self.loss_name, self.method = name, method
        try:
            loss = method.make_loss(config.options, classes, self.embedding_size).to(self.device)
        except ValueError as error:
            raise UsageError(f"method {config.method}: {error}") from error
        self.loss = self.world.shard(loss)
        self.drawn: Rows = np.arange(len(self.labels))  # Samples that batches are drawn from
        self.sampler = self._sampler_of(self.labels)
        # Of the embedding layer where trials do not change it.
        rate = self.default_rate = method.learning_rate if config.learning_rate is None else config.learning_rate
        if config.chooses_averaging and config.learning_rate is None and classes >= FEWEST_CLASSES:
            # Few steps move the layer little; trials on enough classes see to it that it does not go too far.
            rate *= min(max(FULL_STEPS / (config.epochs * len(self.sampler)), 1.0), MOST_RAISED)
        # Of the embedding layer, the backbone and the loss, before the schedule.
        radians = method.proxy_radians
        self.rates = [rate, config.backbone_learning_rate or rate, radians or config.proxy_learning_rate]
        network = self.embedder.head, self.embedder.backbone
        self.optimizer = Optimizers(*network, self.loss, config.weight_decay, radians)

    def _use_filter(self, options: FilterOptions) -> None:
        """Make the filter, the inputs of the loss, and the log of the samples."""
        config, prepared, size, device = self.config, self.prepared, self.embedding_size, self.device
        self.filter_options, self.filter = options, self.make_filter(options)
        training = Training(config, prepared, size, device, self.filter.bank, self.world)
        self.inputs = {name: LOSS_INPUTS[name](training) for name in self.method.inputs}
        observers: list[Method | LossInput | Filter] = [self.method, *self.inputs.values(), self.filter]
        self.log = SampleLog((name for source in observers for name in source.observed), self.changed).to(device)

    def make_filter(self, options: FilterOptions) -> Filter:
        """Make a filter for this run, which need not be the one that it uses."""
        if options.kind == NO_FILTER:
            return Filter()
        if options.kind == AUDIT:
            return AuditFilter(len(self.labels)).to(self.device)
        if options.kind == OWN_CLASS:
            return OwnClassVerdict(len(self.labels)).to(self.device)
        config, data, steps = replace(self.config, filter=options), self.prepared.data, len(self.sampler)
        made = PrismFilter(config, data, self.embedding_size, steps, self.world).to(self.device)
        self.world.shard(made.prism)
        return made

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return len(self.history)

    @property
    def epochs(self) -> int:
        """Epochs to take: one, for its record and scores, where nothing that is trained is used."""
        used = self.averaging > 0 and not self.keeps_features
        return self.config.epochs if used else 1

    @property
    def position(self) -> str:
        """The current activity, in words."""
        steps = self.under_way.steps
        return f"step {steps} of epoch {self.epoch + 1}" if steps else f"epoch {self.epoch}"

    @property
    def data_summary(self) -> dict[str, Any]:
        """Name and sizes of the training data, and the changes by an audit."""
        data = self.prepared.data
        sizes = {"name": data.name, "train": list(data.train.inputs.shape), "classes": data.train.num_classes}
        if data.content:
            sizes["content"] = data.content
        if data.noise != "none":
            sizes["noise"] = data.noise
        return sizes if self.audited is None else {**sizes, "audited": self.audited}

    def fit_inputs(self, on_progress: OnProgress) -> None:
        """Prepare inputs and filter before the first epoch, such as phase one of Smooth Proxy-Anchor."""
        for loss_input in self.inputs.values():
            loss_input.fit(on_progress)
        self.filter.fit(self.beliefs.judge, self.embed_training_split)
        self.draw_from_kept()

    def draw_from_kept(self) -> None:
        """Draw batches from what the filter keeps, until the second stage is chosen without the classes set aside."""
        kept = self.filter.verdict.get(KEPT)
        drawn = ~self.aside if self.chosen is None else np.ones_like(self.aside)
        rows = np.flatnonzero(drawn if kept is None else drawn & kept.cpu().numpy())
        if not np.array_equal(rows, self.drawn):
            self.drawn, self.sampler = rows, self._sampler_of(self.labels[rows])

    def _sampler_of(self, labels: Labels) -> RandomSampler | ClassBalancedSampler:
        config, usual = self.config, self.method.samples_per_class
        return make_sampler(labels, config.batch_size, config.samples_per_class, usual, config.seed)

    def take_steps(
        self, on_progress: OnProgress, recorders: Sequence[Recorder], pause: Callable[[], object] = lambda: None
    ) -> None:
        """Take the steps of the epoch that are left; `pause` is called after each, when `state` holds all of it."""
        done = self.under_way
        began = time.perf_counter() - done.seconds
        if done.steps == 0:
            for loss_input in self.inputs.values():
                loss_input.start_epoch(self.epoch, self.embed_training_split)
            self.log.clear()
            self.log.write(np.arange(len(self.labels)), self.filter.verdict)
        self.network.train()
        title = f"epoch {self.epoch + 1} of {self.epochs}"
        batches = islice(self.sampler.batches(self.epoch), done.steps, None)
        left = [self.world.part(self.drawn[rows]) for rows in batches]
        for rows, inputs in zip(left, batches_of(self.prepared.data.train.inputs, left), strict=True):
            try:
                value = self._step(rows, inputs)
            except NotFiniteError as error:
                raise UsageError(f"epoch {self.epoch + 1}, step {done.steps + 1}: {error}") from error
            done.steps, done.samples = done.steps + 1, done.samples + self.world.size * len(rows)
            if value is not None:
                done.total, done.taken = done.total.to(value.device) + value, done.taken + 1
            for recorder in recorders:
                recorder.step(done.steps, len(self.sampler), value)
            on_progress(title, done.steps, len(self.sampler))
            done.seconds = time.perf_counter() - began
            pause()
            began = time.perf_counter() - done.seconds
        loss = float(done.total)
        done.seconds = time.perf_counter() - began
        if not np.isfinite(loss):
            raise UsageError(f"the loss of epoch {self.epoch + 1} is {loss}: try a smaller learning rate or amp none")

    def end_epoch(self, metrics: dict[str, float]) -> None:
        """Make a record of the epoch, with these metrics and what the log holds."""
        loss = float(self.under_way.total) / max(self.under_way.taken, 1)
        done = self.under_way
        record = {"epoch": self.epoch + 1, "loss": loss, "seconds": done.seconds, "samples": done.samples, **metrics}
        margins = getattr(self.loss, "margins", None)
        if margins is not None:
            record["margin"] = float(whole(margins.detach()).mean())
        self.log.values.copy_(self.world.merged(self.log.values))
        record |= self.log.record()
        seen = self.world.summed(self.under_way.seen)
        record |= {name: total / number for name, (total, number) in zip(SEEN, seen.tolist(), strict=True) if number}
        for source in self.inputs.values():
            record |= source.record()
        record |= self.filter.record()
        self.next_epoch(record)

    def next_epoch(self, record: dict[str, float]) -> None:
        """Add a record of the epoch to the history."""
        self.history.append(record)
        self.under_way = UnderWay()

    def evaluate(self, measure: Callable[..., T]) -> T:
        """Measures of the test split, by the embeddings as they would be used."""
        test = self.prepared.data.test
        return measure(embed_in_batches(self.averaged(), test.inputs, self.device), test.labels, self.device)

    def averaged(self) -> Embedder:
        """Give the network to use, whose embedding layer is start + averaging · (trained − start)."""
        if self.keeps_features:
            return Embedder(self.prepared.backbone, self.prepared.num_features, None)
        if self.averaging == 1:
            return self.embedder
        # A copy: a new network would draw random numbers. Below the layer is the identity.
        used = deepcopy(self.embedder)
        with torch.no_grad():
            for parameter, start in zip(used.head.parameters(), self.start.parameters(), strict=True):
                parameter.lerp_(start, 1 - self.averaging)
        return used

    def scores(self) -> dict[str, Singles]:
        """Scores of each training label in the last epoch, (N,) by name."""
        scores = self.log.scores()
        for loss_input in self.inputs.values():
            scores |= loss_input.scores()
        return scores

    def _step(self, rows: Rows, inputs: Array) -> Tensor | None:
        """Take a step and return the detached loss; no step, and None, where the filter keeps nothing."""
        seen, keep, kept = torch.empty(0), None, True

        def loss_of(embeddings: Tensor) -> Tensor:
            nonlocal seen, keep, kept
            seen = embeddings.detach()
            keep, observed = self.filter.judge(seen, rows, self._proxies)
            self.log.write(rows, observed)
            kept = keep is None or bool(self.world.largest(int(keep.any())))
            return self._batch_loss(embeddings, rows, keep) if kept else 0 * embeddings.sum()

        factor = self.config.rate_factor(self.epoch + (self.under_way.steps + 0.5) / len(self.sampler))
        self.optimizer.begin([rate * factor for rate in self.rates])
        value = self._backward(loss_of, as_tensor(inputs, self.device))
        if kept:
            self.optimizer.step()
        for loss_input in self.inputs.values():
            loss_input.after_step(rows, seen, keep)
        if keep is not None:
            self.filter.remember(seen, rows, keep)
        return value if kept else None

    def _backward(self, loss_of: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        """The loss, detached, whose gradients the parameters have."""
        if self.config.micro_batch is None:
            with self._autocast():
                embeddings = self.network(images)
            loss = loss_of(embeddings)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()

        def outside_of_autocast(embeddings: Tensor) -> Tensor:
            with torch.autocast(self.device.type, enabled=False):
                return loss_of(embeddings)

        with self._autocast():
            tower = self.network, images
            return backward_in_micro_batches(outside_of_autocast, tower, micro_batch=self.config.micro_batch)

    def _batch_loss(self, embeddings: Tensor, rows: Rows, keep: Tensor | None) -> Tensor:
        # Outside of autocast: confidences keep float32, because β = 100 would make their rounding errors large.
        arguments: dict[str, Any] = {}
        for source in self.inputs.values():
            given = source.arguments(rows)
            self.log.write(rows, source.observe(given))
            arguments |= given
        if keep is not None:
            arguments["sample_weights"] = keep.float() * arguments.get("sample_weights", 1.0)
        loss: Any = self.loss
        observes = self.under_way.steps % OBSERVED_EVERY == 0 and getattr(loss, "observable", False)
        with self._autocast(), loss.observed() if observes else nullcontext() as seen:
            value, observed = self.method.observe(loss, embeddings, arguments)
        if seen is not None:
            self.under_way.see(seen)
        self.log.write(rows, observed)
        return value

    def _proxies(self) -> Tensor | None:
        return None if self.method.proxies is None else self.method.proxies(self.loss)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.amp == "bf16")

    def embed_training_split(self) -> Tensor:
        """Embeddings of the training samples as they are now, (N, D)."""
        return torch.from_numpy(apply_in_batches(self.embedder, self.prepared.data.train.inputs, self.device))

    def state(self) -> dict[str, Any]:
        """State to resume from with the same bits."""
        return {
            **{name: whole(module.state_dict()) for name, module in self._modules().items()},
            "log": {"values": self.world.merged(self.log.values)},
            "under_way": asdict(self.under_way),
            **self.optimizer.state(),
            "history": self.history,
            "phase_one_seconds": self.phase_one_seconds,
            "share": self.averaging,
            "rates": self.rates,
            "keeps_features": self.keeps_features,
            "chosen": self.chosen,
            "loss_name": self.loss_name,
            "filter_options": self.filter_options.as_dict(),
            "rng": torch.get_rng_state(),
            "rng_cuda": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        options = FilterOptions(**state["filter_options"])
        self.choose(state.get("loss_name", self.loss_name), options, state["share"], state["keeps_features"])
        for name, module in self._modules().items():
            # Runs without a filter have stored none.
            module.load_state_dict(state.get(name, {}))
        self.chosen = state["chosen"]
        self.draw_from_kept()
        for loss_input in self.inputs.values():
            loss_input.loaded()
        self.optimizer.load_state(state)
        self.under_way = UnderWay(**state["under_way"])
        if self.under_way.steps and not self.world.leads:
            self.log.clear()  # In the middle of an epoch each process has what it saw itself.
        self.history = state["history"]
        self.phase_one_seconds = state["phase_one_seconds"]
        self.rates = state.get("rates", self.rates)
        torch.set_rng_state(state["rng"])
        if state["rng_cuda"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["rng_cuda"], self.device)

    def _modules(self) -> dict[str, nn.Module]:
        own = {
            "embedder": self.embedder,
            "start": self.start,
            "loss": self.loss,
            "log": self.log,
            "filter": self.filter,
        }
        return own | {name: value.module for name, value in self.inputs.items() if value.module is not None}
