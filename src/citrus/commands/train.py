"""`citrus train RECIPE [--field value ...]`: from a named recipe to a run folder with a trained, evaluated network."""

import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

from citrus.certify import Certification, CertifySettings, GroupResult, certify_into
from citrus.commands.attack import evaluation_table, exit_code, save_picture
from citrus.commands.certify import by_size
from citrus.commands.target import pairs, parse_flags, seen_in_training, take_word
from citrus.console import Bar, duration
from citrus.data import Splits, as_float, load
from citrus.errors import CitrusError, code_of, suggest
from citrus.files import locked, read_lines
from citrus.inputs import format_eps
from citrus.recipes import MEASURED, RECIPES, recipe
from citrus.training import Events, Progress, Run, Stopped, TrainConfig, override, read_config, to_dict, train
from citrus.training.config import field_names
from citrus.training.evaluation import uap_file
from citrus.training.run import pick_device

SUFFIX = ".citrus"  # of the event files' names: others in the folder are not ours to replace


@dataclass
class TrainFlags:
    """Train a network. Every field of the recipe is a flag too: --eps 8/255 --method.tau-ratio 0.4 --epochs 20."""

    config: str | None = None
    """Start from this config.json (or run folder) instead of a recipe."""
    out: str | None = None
    """Run folder; by default runs/RECIPE, numbered when that is taken."""
    data_dir: str | None = None
    """Folder of the data sets; else CITRUS_DATA, else the user cache."""
    device: str = "auto"
    """cpu, cuda or auto."""
    resume: bool = False
    """Go on with the run in --out."""
    log: str | None = None
    """tensorboard: also write the metrics as TensorBoard events, into RUN/tensorboard."""
    dry_run: bool = False
    """One batch through all stages, nothing is kept."""
    print_config: bool = False
    """Print the resolved configuration as JSON and stop."""
    list: bool = False
    """List the recipes and stop."""


def run(arguments: list[str]) -> int:
    name, rest = take_word(arguments)
    if "--help" in rest and name:
        _print_fields(name, recipe(name))
        return 0
    every_field = {field for config in RECIPES.values() for field in field_names(config)}
    flags, words = parse_flags(TrainFlags, "train", rest, sorted(every_field))
    if flags.list:
        print(_recipe_list())
        return 0
    config = override(_base(name, flags), pairs(words))
    if flags.print_config:
        print(json.dumps(to_dict(config), indent=2))
        return 0
    splits = load(config.data, data_dir=flags.data_dir, validation=config.validation)
    if flags.dry_run:
        _dry_run(config, splits, flags.device)
        return 0
    out = Path(flags.out) if flags.out else _free_folder(name or "run")
    try:
        with locked(out):
            result = _train(config, splits, out, flags)
            return _conclude(result, _certify(result, splits, flags.device))
    except Stopped as stop:
        _say(f"{stop}\n  citrus train --resume --out {out}")
        return stop.code
    except KeyboardInterrupt as stop:
        _say(f"Interrupted; what was finished is kept.\n  citrus train --resume --out {out}")
        return code_of(stop)


def _base(name: str | None, flags: TrainFlags) -> TrainConfig:
    """The configuration before overrides: a recipe, a file, or that of the run to resume."""
    if name and flags.config:
        raise CitrusError("Give either a recipe or --config, not both.")
    if flags.resume and not flags.out:
        raise CitrusError("--resume needs --out, the folder of the run to go on with.")
    if name:
        return recipe(name)
    source = flags.config or (flags.out if flags.resume else None)
    if not source:
        raise CitrusError("Which recipe? `citrus train --list` shows them; start with `citrus train quickstart`.")
    return read_config(Path(source))


def _free_folder(name: str) -> Path:
    folders = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(folder for folder in folders if not folder.exists())


def _train(config: TrainConfig, splits: Splits, out: Path, flags: TrainFlags) -> Run:
    if flags.log not in (None, "tensorboard"):
        raise CitrusError(f"Unknown log {flags.log!r}: {suggest(flags.log, ['tensorboard'])}")
    log = TensorBoard(out) if flags.log else None
    _say(
        f"{config.method.name} on {splits.info.name} at eps {format_eps(config.eps)}: {config.network}, "
        f"{len(splits.train)} training, {len(splits.validation)} validation and {len(splits.test)} test images, "
        f"{config.epochs} epochs of batch {config.batch_size}, into {out}"
    )
    with Bar("training") as bar, log or nullcontext():

        def on_step(now: Progress) -> None:
            text = f"epoch {now.epoch + 1}/{config.epochs} eps {now.eps:.4f} loss {now.loss:.4f}"
            bar.update(now.step, now.steps, text)
            if log and now.row:
                log.update()

        events = Events(on_step, on_stage=_say)
        result = train(config, out, splits=splits, device=flags.device, resume=flags.resume, events=events)
        if log:  # of a run that was complete before it was resumed
            log.update()
    return result


class TensorBoard(AbstractContextManager["TensorBoard"]):
    """The rows of a run's metrics.jsonl as TensorBoard scalars, each at its training step.

    The first update takes the place of earlier event files, so that a resumed run has every point once, and a run that
    starts to log half way has them all.
    """

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise CitrusError(
                "`--log tensorboard` needs the tensorboard package: pip install 'citrus-uap[tensorboard]'."
            ) from error
        self.run, self.kind = run, SummaryWriter
        self.writer: Any = None
        self.written = 0

    def update(self) -> None:
        """Write the rows that are not written yet."""
        if self.writer is None:
            folder = self.run / "tensorboard"
            for old in folder.glob(f"*{SUFFIX}"):
                old.unlink()
            self.writer = self.kind(str(folder), filename_suffix=SUFFIX)
        for row in read_lines(self.run / "metrics.jsonl")[0][self.written :]:
            for name, value in row.items():
                if name != "step":
                    self.writer.add_scalar(name, value, row["step"])
            self.written += 1
        self.writer.flush()

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()


SIZES: tuple[int | Literal["all"], ...] = (1, 5, 20, "all")
"""Images that share one perturbation, in the certifications after training."""


def _certify(result: Run, splits: Splits, device: str) -> list[Certification]:
    """The test images that the attacks saw, through the whole cascade: each by itself, in groups, and all together."""
    _say("certifying against universal perturbations")
    config, place = result.config, pick_device(device)
    test = splits.test.subset(slice(0, config.test_images or None)).to(place)
    network, images, labels, eps = result.network.to(place), as_float(test.images), test.labels, config.eps
    out, found = result.path / "certify", list[Certification]()
    used = seen_in_training(splits.train, test, str(result.path))
    for size in (size for size in SIZES if size == "all" or size < len(images)):
        settings = CertifySettings(group_size=size, grouping="dataset")
        with Bar(f"groups of {size}" if size != "all" else "all together") as bar:

            def on_rows(rows: Sequence[GroupResult], done: int, total: int, bar: Bar = bar) -> None:
                bar.update(done, total)

            found.append(
                certify_into(
                    *(out, network, images, labels, eps, settings),
                    name=str(result.path),
                    used=used,
                    classes=test.classes,
                    on_rows=on_rows,
                    on_text=bar.say,
                )
            )
    return found


def _conclude(result: Run, certified: list[Certification]) -> int:
    assert result.evaluation
    summary = json.loads((result.path / "summary.json").read_text())
    print(f"{evaluation_table(result.evaluation)}\n\n{by_size(certified)}")
    print(f"\ntraining took {duration(summary['training_seconds'])}, evaluation {duration(result.evaluation.seconds)}")
    picture = save_picture(uap_file(result.path, result.config.eps))
    if picture:
        print(f"picture     {picture}")
    print(f"run folder  {result.path}")
    print(f"next        citrus certify {result.path} --certificates")
    print(f"report      citrus report {result.path}")
    return exit_code(result.evaluation, result.path) or (2 if any(one.errors for one in certified) else 0)


def _dry_run(config: TrainConfig, splits: Splits, device: str) -> None:
    """One step at full eps and a small evaluation, in a folder that is thrown away."""
    few = slice(0, 2 * config.group_size)
    train_part = splits.train.subset(slice(0, config.batch_size))
    small = Splits(train_part, splits.validation.subset(few), splits.test.subset(few), splits.info)
    one = replace(config, epochs=1, warmup_epochs=0, ramp_epochs=0, milestones=())
    with tempfile.TemporaryDirectory() as folder:
        train(one, Path(folder) / "run", splits=small, device=device)
    print("dry run: one step and the evaluation went through; nothing was kept")


def _recipe_list() -> str:
    lines = [f"{len(RECIPES)} recipes; names that end in the method carry published hyper-parameters", ""]
    width = max(map(len, RECIPES)) + 2
    for name, config in RECIPES.items():
        found = MEASURED.get(name)
        note = f"clean {found.clean:.2f} ibp {found.ibp_certified:.2f} in {found.minutes:.1f} min" if found else ""
        lines.append(f"  {name:{width}}{config.network:10}{config.epochs:4} epochs  {note}".rstrip())
    return "\n".join(lines)


def _print_fields(name: str, config: TrainConfig) -> None:
    """Help for one recipe: tyro lists every field with its value and meaning."""
    import tyro

    print(f"citrus train {name}: the flags of `citrus train --help`, and the fields below\n")
    kind: Any = tyro.conf.AvoidSubcommands[tyro.conf.FlagConversionOff[TrainConfig]]
    tyro.cli(kind, prog=f"citrus train {name}", default=config, args=["--help"])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
