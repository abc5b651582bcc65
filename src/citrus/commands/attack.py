"""`citrus attack NETWORK --eps E`: how a network fares against universal perturbations."""

from dataclasses import asdict, dataclass

from citrus.commands.flags import parse_flags, take_word
from citrus.commands.results import evaluation_table, save_picture
from citrus.commands.target import find_target
from citrus.files import write_json
from citrus.training import evaluate_into
from citrus.training.evaluation import uap_file
from citrus.training.run import pick_device


@dataclass
class AttackFlags:
    """Attack a network (run folder, ONNX file or name of the zoo) on its test set: citrus attack RUN --eps 0.2"""

    data: str | None = None
    """Data set whose test images are attacked; by default the network's own."""
    eps: str | None = None
    """Radius in pixel units, such as 0.1 or 8/255; by default the one it was trained for."""
    group_size: int | None = None
    """Images that share one perturbation; by default as in the run, or 5."""
    images: int = 1000
    """Test images to attack."""
    seed: int = 0
    """Seed of the attack."""
    data_dir: str | None = None
    """Folder of the data sets; else CITRUS_DATA, else the user cache."""
    device: str = "auto"
    """cpu, cuda or auto."""
    mean: str | None = None
    """For an ONNX file without normalisation: mean of each channel, such as 0.1307."""
    std: str | None = None
    """For an ONNX file without normalisation: standard deviation of each channel."""


def run(arguments: list[str]) -> int:
    name, rest = take_word(arguments)
    flags, _ = parse_flags(AttackFlags, "attack", rest)
    target, device = find_target(name, "attack"), pick_device(flags.device)
    eps, test = target.radius(flags.eps), target.test_set(flags.data, flags.data_dir, device)
    network = target.load(test.shape, flags.mean, flags.std).to(device)
    result = evaluate_into(
        target.folder,
        network,
        test,
        eps,
        group_size=target.group_size if flags.group_size is None else flags.group_size,
        attacked=flags.images,
        clip=target.clip,
        seed=flags.seed,
    )
    path = uap_file(target.folder, eps)
    write_json(path.with_suffix(".json"), asdict(result))
    picture = save_picture(path) or "needs matplotlib: pip install 'citrus-uap[report]'"
    print(f"{evaluation_table(result)}\n\nperturbations  {path}\npicture        {picture}")
    return 0
