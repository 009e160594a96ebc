"""``robustdml train``: one training run."""

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.table import Table

from robustdml.cache import write_text
from robustdml.command_line import is_off, path
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData, load_data
from robustdml.data.settings import DataSettings, PlaceSettings
from robustdml.errors import UsageError
from robustdml.evaluation import METRICS
from robustdml.methods import METHODS
from robustdml.networks.backbones.choice import default_image_size
from robustdml.networks.preparation import resolve_device, untouched_features
from robustdml.noise import parse_noise, with_wrong_labels
from robustdml.options import Setting
from robustdml.progress import OnProgress, Recorder, progress_bar, silent
from robustdml.reports.run_report import render_run
from robustdml.run.audited_labels import describe
from robustdml.run.checkpoint import FILE_NAME as CHECKPOINT
from robustdml.run.tensorboard import FOLDER as TENSORBOARD
from robustdml.run.tensorboard import TensorBoard
from robustdml.settings.file import FILE_NAME as CONFIG_FILE
from robustdml.settings.file import SettingsFile, read_settings
from robustdml.settings.given import Given, all_settings, complete_settings, make_config, make_group, merge, value_of
from robustdml.train import TrainingResult, check_folder, train
from robustdml.trained.model_file import FILE_NAME as MODEL
from robustdml.untouched import untouched_title
from robustdml.world import World, joined_world

# A run that goes on is told apart from another one by its checkpoint, which does not see these: the data has its name
# and sizes there.
SPLIT_SETTINGS = ("test_fraction", "split_seed", "noise")

FIGURES = {
    **METRICS,
    "clean_auc": "score of right against wrong labels, AUC",
    "filter_precision": "right labels among the kept",
    "filter_kept": "kept by the filter",
    "corrected_share": "under another label",
    "corrected_right": "right ones among those labels",
    "confidence_accuracy": "confidence head, accuracy on true labels",
    "margin": "learnt margin",
    "training_seconds": "seconds of training",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    run_options = parser.add_argument_group("the run")
    run_options.add_argument(
        "--out",
        type=path,
        help="folder for model, checkpoint, metrics, settings and report; without it nothing is written",
    )
    run_options.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    run_options.add_argument(
        "--config",
        type=path,
        metavar="FILE",
        help=f"settings in YAML, as each run writes them to OUT/{CONFIG_FILE}; options given beside it override it "
        "(default: with --resume that of --out)",
    )
    headings: dict[str, argparse._ArgumentGroup] = {}
    for setting in all_settings().values():
        if setting.heading not in headings:
            headings[setting.heading] = parser.add_argument_group(setting.heading)
        _add_option(headings[setting.heading], setting)


def _add_option(group: argparse._ArgumentGroup, setting: Setting) -> None:
    """Declare an option. What is not given is None, so that a file can say it; help shows the default."""
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
    """Say how a run that was interrupted goes on."""
    if arguments.out is None:
        return "nothing is kept of a run without --out"
    if (arguments.out / CHECKPOINT).exists():
        return f"--out {arguments.out} --resume goes on after the last whole epoch"
    return "no epoch was done, and the same command starts anew"


def run(arguments: argparse.Namespace) -> int:
    """Train, and print what came out."""
    if arguments.resume and arguments.out is None:
        raise UsageError("--resume needs --out, the folder of the run")
    given = _given(arguments)
    with joined_world(value_of(given, "device")) as world:
        return _run(arguments, given, world)


def _run(arguments: argparse.Namespace, given: dict[str, Given], world: World) -> int:
    out: Path | None = arguments.out
    try:
        config = make_config(given)
        parse_noise(value_of(given, "noise"))
    except UsageError as error:
        if arguments.config is None:
            raise
        raise UsageError(f"{error} (settings of {arguments.config} and of the command line)") from error
    if out is not None and world.leads:
        check_folder(out, arguments.resume)
    recorders = _recorders(out, config, given) if world.leads else ()
    with progress_bar(METHODS[config.method].title) if world.leads else nullcontext() as report:
        follower = [] if report is None else [report]
        on_progress = silent if report is None else report
        on_progress("reading data", 0, 0)
        result = train(
            config,
            world.first(lambda: _load(config, given, on_progress)),
            out=out,
            resume=arguments.resume,
            device=value_of(given, "device"),
            on_progress=on_progress,
            recorders=[*follower, *recorders],
            world=world,
        )
        if report is None:
            return 0
        if out is not None:
            report("report", 0, 0)
            write_text(out / "report.html", render_run(result))
    console = Console()
    console.print(_summary_table(result))
    if "audited" in result.summary["data"]:
        console.print(describe(result.summary["data"]["audited"]), highlight=False)
    if result.summary["below_untouched"]:
        console.print(result.summary["below_untouched"], style="yellow", highlight=False)
    if out is not None:
        print(f"{out / MODEL}: try robustdml embed {out} IMAGES -o embeddings.npz")
    return 0


def _load(config: TrainingConfig, given: dict[str, Given], on_progress: OnProgress) -> RetrievalData:
    """Load the data, and make training labels wrong if the settings say so."""
    settings, place = make_group(DataSettings, given), make_group(PlaceSettings, given)
    data = load_data(
        settings.data,
        image_size=default_image_size(config.backbone) if settings.image_size is None else settings.image_size,
        test_fraction=settings.test_fraction,
        split_seed=settings.split_seed,
        on_progress=on_progress,
    )
    return with_wrong_labels(
        data,
        settings.noise,
        config.seed,
        lambda: untouched_features(config, data, resolve_device(place.device), on_progress),
    )


def _given(arguments: argparse.Namespace) -> dict[str, Given]:
    """Settings of the command line, and of the file beside it: of a run that goes on, that is its own."""
    values = vars(arguments)
    command = {
        name: Given(values[name], f"--no-{setting.flag[2:]}" if values[name] is False else setting.flag)
        for name, setting in all_settings().items()
        if values[name] is not None
    }
    own = {}
    if arguments.resume and (arguments.out / CONFIG_FILE).exists():
        own = read_settings(arguments.out / CONFIG_FILE)
    given = merge(command, own if arguments.config is None else read_settings(arguments.config))
    for name in SPLIT_SETTINGS if own else ():
        then, now = value_of(own, name), value_of(given, name)
        if then != now:
            raise UsageError(
                f"{arguments.out} holds a run on other data: give the same settings. {name}: {then} then, {now} now"
            )
    return given


def _recorders(out: Path | None, config: TrainingConfig, given: dict[str, Given]) -> Sequence[Recorder]:
    logged = value_of(given, "logger") == "tensorboard"
    if out is None:
        if logged:
            raise UsageError(f"{given['logger'].where} needs --out, the folder for its files")
        return ()
    settings = SettingsFile(out / CONFIG_FILE, complete_settings(config, given))
    return (settings, TensorBoard(out / TENSORBOARD)) if logged else (settings,)


def _summary_table(result: TrainingResult) -> Table:
    table = Table(title=f"{METHODS[result.config.method].title}, noise {result.summary['noise']}")
    for title in ("", "last epoch", untouched_title(result.config.backbone).lower()):
        table.add_column(title)
    for key, title in FIGURES.items():
        value = result.summary.get(key)
        if value is not None:
            before = result.summary["untouched"].get(key)
            shown = f"{value:.4f}" if key != "training_seconds" else f"{value:.1f}"
            table.add_row(title, shown, "" if before is None else f"{before:.4f}")
    return table
