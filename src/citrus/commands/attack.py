"""`citrus attack RUN --eps E`: how a trained network fares against universal perturbations of another size."""

from dataclasses import asdict, dataclass
from pathlib import Path

from citrus.commands.flags import parse_flags, take_word
from citrus.commands.results import evaluation_table, save_picture
from citrus.data import as_float, load
from citrus.errors import CitrusError
from citrus.files import write_json
from citrus.inputs import format_eps, parse_eps
from citrus.training import evaluate, load_run
from citrus.training.perturbations import save_universal
from citrus.training.run import pick_device


@dataclass
class AttackFlags:
    """Attack the network of a run folder on its test set: citrus attack RUN --eps 0.2"""

    eps: str | None = None
    """Radius in pixel units, such as 0.1 or 8/255; by default the one it was trained for."""
    group_size: int | None = None
    """Images that share one perturbation; by default as in the run."""
    images: int = 1000
    """Test images to attack."""
    seed: int = 0
    """Seed of the attack."""
    data_dir: str | None = None
    """Folder of the data sets; else CITRUS_DATA, else the user cache."""
    device: str = "auto"
    """cpu, cuda or auto."""


def run(arguments: list[str]) -> int:
    folder, rest = take_word(arguments)
    flags, _ = parse_flags(AttackFlags, "attack", rest)
    if not folder:
        raise CitrusError("Which network? citrus attack RUN_FOLDER --eps 0.1")
    trained = load_run(folder)
    config = trained.config
    eps = config.eps if flags.eps is None else parse_eps(flags.eps)
    device = pick_device(flags.device)
    test = load(config.data, data_dir=flags.data_dir, validation=config.validation).test.to(device)
    images, network = as_float(test.images), trained.network.to(device)
    size = config.group_size if flags.group_size is None else flags.group_size
    result, attack = evaluate(
        network, images, test.labels, eps, group_size=size, attacked=flags.images, clip=config.clip, seed=flags.seed
    )
    name = format_eps(eps).replace("/", "-")
    path = Path(folder) / "uap" / f"{name}.safetensors"
    save_universal(path, eps, size, test.classes, attack, images, test.labels, network)
    write_json(path.with_suffix(".json"), asdict(result))
    print(evaluation_table(result))
    picture = save_picture(Path(folder), eps)
    print(
        f"\nperturbations  {path}\n" + (f"picture        {picture}" if picture else "picture        needs matplotlib")
    )
    return 0
