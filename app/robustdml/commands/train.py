"""``robustdml train``: one training run."""

import argparse
from contextlib import nullcontext
from itertools import count
from pathlib import Path

from rich.table import Table

from robustdml.cache import write_text
from robustdml.command_line import add_json_argument, add_size_limit, duration, is_off, path, print_json, say_left_out
from robustdml.commands.reading import add_cache_argument, columns_of
from robustdml.data import RetrievalData, load_data
from robustdml.data.named import NAMED
from robustdml.errors import UsageError, say
from robustdml.evaluation import untouched_title
from robustdml.methods import METHODS
from robustdml.networks.backbones.choice import check_installed, default_image_size
from robustdml.networks.preparation import reading_for, resolve_device
from robustdml.noise import with_wrong_labels
from robustdml.options import Setting
from robustdml.progress import OnProgress, Recorder, TensorBoard, progress_bar, show_table
from robustdml.reports.run_report import figures_of, render_run, test_labels_note
from robustdml.run.audited_labels import describe
from robustdml.run.checkpoint import CHECKPOINT, check_folder
from robustdml.run.evidence import CAPTION, HEAD, rows_of
from robustdml.run.preemption import EndSignals
from robustdml.run.result import TrainingResult
from robustdml.settings import CONFIG_FILE, RunSettings, SettingsFile, all_settings, read_run_settings
from robustdml.train import train
from robustdml.trained.embedder import MODEL_FILE
from robustdml.world import World, joined_world

RUNS, REPORT = "robustdml-run", "report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    run_options = parser.add_argument_group("the run")
    run_options.add_argument(
        "--out",
        type=path,
        help=f"folder for model, checkpoint, metrics, settings and report (default: {RUNS}-1, or the next free one)",
    )
    run_options.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    run_options.add_argument(
        "--checkpoint-every",
        type=duration,
        metavar="TIME",
        help="checkpoints within an epoch as well, such as every 90s, 10m or 2h",
    )
    run_options.add_argument(
        "--config",
        type=path,
        metavar="FILE",
        help=f"settings, such as OUT/{CONFIG_FILE}; options override them (default: with --resume those of --out)",
    )
    add_size_limit(run_options)
    add_cache_argument(run_options)
    add_json_argument(parser)
    headings: dict[str, argparse._ArgumentGroup] = {}
    for setting in all_settings().values():
        if setting.heading not in headings:
            headings[setting.heading] = parser.add_argument_group(setting.heading)
        _add_option(headings[setting.heading], setting)


def _add_option(group: argparse._ArgumentGroup, setting: Setting) -> None:
    """Declare an option. Its default is None, so that a file of settings can give it; help shows the real default."""
    shown = "" if is_off(setting.default) else f" (default: {setting.default})"
    if setting.kind is bool:
        action = argparse.BooleanOptionalAction
        group.add_argument(setting.flag, dest=setting.name, action=action, default=None, help=setting.text + shown)
        return
    metavar = None if setting.choices else setting.metavar or setting.name.rpartition(".")[2].upper()
    group.add_argument(
        setting.flag, dest=setting.name, type=setting.kind, choices=setting.choices, metavar=metavar,
        help=setting.text + shown,
    )  # fmt: skip


def way_on(arguments: argparse.Namespace) -> str:
    if (arguments.out / CHECKPOINT).exists():
        return f"--out {arguments.out} --resume goes on from the last checkpoint"
    return "nothing was saved yet, and the same command starts anew"


def run(arguments: argparse.Namespace) -> int:
    if arguments.resume and arguments.out is None:
        raise UsageError("--resume needs --out, the folder of the run")
    # Before the processes of a run meet, so that all choose the same.
    out: Path = arguments.out or next(path for number in count(1) if not (path := Path(f"{RUNS}-{number}")).exists())
    arguments.out = out
    settings = read_run_settings(vars(arguments), arguments.config, out, arguments.resume)
    with EndSignals(), joined_world(settings.place.device) as world:
        if world.leads:
            check_folder(out, arguments.resume)
        result = _train(settings, arguments, world)
    if world.leads:
        if arguments.json:
            files = {"report": str(out / REPORT), "model": str(out / MODEL_FILE)}
            print_json({**result.summary, "left_out": list(result.left_out), "notes": list(result.notes), **files})
        else:
            _print(result, out)
        say_left_out("train", result.left_out, result.notes)
    return 0


def _train(settings: RunSettings, arguments: argparse.Namespace, world: World) -> TrainingResult:
    out: Path = arguments.out
    recorders: list[Recorder] = []
    if world.leads:
        recorders.append(SettingsFile(out / CONFIG_FILE, settings.complete))
        if settings.place.logger == "tensorboard":
            recorders.append(TensorBoard(out / "tensorboard"))
    with progress_bar(METHODS[settings.config.method].title) if world.leads else nullcontext(Recorder()) as bar:
        bar("reading data", 0, 0)
        data = world.first(lambda: _load(settings, bar))
        result = train(
            settings.config,
            data,
            out=out,
            resume=arguments.resume,
            device=settings.place.device,
            on_progress=bar,
            recorders=[bar, *recorders],
            checkpoint_every=arguments.checkpoint_every,
            world=world,
        )
        if world.leads:
            bar("report", 0, 0)
            write_text(out / REPORT, render_run(result, data))
    return result


def _load(settings: RunSettings, on_progress: OnProgress) -> RetrievalData:
    """Load the data, and make training labels wrong if the settings say so."""
    config, chosen = settings.config, settings.data
    of_images = chosen.data not in NAMED and not chosen.data.lower().endswith(".npz") and not chosen.features
    if of_images:
        check_installed(config.backbone, config.backbone_weights)
    size = default_image_size(config.backbone) if chosen.image_size is None else chosen.image_size
    how = {name: getattr(chosen, name) for name in ("test_fraction", "split_seed", "skip_broken", "features")}
    columns = columns_of(chosen)
    reading = None
    if of_images:
        reading = reading_for(config, size, resolve_device(settings.place.device), on_progress)
    data = load_data(chosen.data, image_size=size, columns=columns, reading=reading, on_progress=on_progress, **how)
    return with_wrong_labels(data, chosen.noise, config.seed)


def _print(result: TrainingResult, out: Path) -> None:
    wrong = f" ({result.changed.sum():,} of {len(result.changed):,} labels wrong)" if result.changed.any() else ""
    noise, name = result.summary["noise"], result.summary["data"]["name"]
    known = f"noise {noise}" if noise != "none" or name in NAMED else "labels as they are"
    title = f"{METHODS[result.config.method].title}, {known}{wrong}"
    table = Table("", "last epoch", untouched_title(result.config.backbone).lower(), title=title)
    for row in figures_of(result):
        table.add_row(*row)
    show_table(table)
    if "audited" in result.summary["data"]:
        say(describe(result.summary["data"]["audited"]))
    if (chosen := result.summary["chosen"]) is not None:
        trials = Table(*HEAD, title="Trials", caption=CAPTION, box=None, padding=(0, 1))
        for row in rows_of(chosen):
            trials.add_row(*row)
        if chosen["contestants"]:
            show_table(trials)
        say(chosen["advice"])
    for told in (result.summary["below_untouched"], result.summary["still_rising"], test_labels_note(result)):
        if told:
            say(told)
    say(f"{out / REPORT}: curves, examples and doubtful labels; settings, checkpoint and figures are beside it")
    samples, seconds = (sum(one.get(key, 0.0) for one in result.history) for key in ("samples", "seconds"))
    sizes = (f"{name} {(out / name).stat().st_size / 1e6:.3g} MB" for name in (CHECKPOINT, MODEL_FILE))
    say(f"{samples / seconds:,.0f} samples a second; {', '.join(sizes)}")
    data = "IMAGES" if result.model.card.takes_images else "FEATURES.npz"
    say(f"{out / MODEL_FILE}: try robustdml embed {out} {data} -o embeddings.npz")
