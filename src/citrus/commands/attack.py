"""`citrus attack NETWORK --eps E`: how a network fares against universal perturbations."""

from dataclasses import asdict, dataclass

from citrus.commands.flags import parse_flags, take_word
from citrus.commands.results import evaluation_table, save_picture
from citrus.commands.target import NetworkFlags, find_target
from citrus.data import as_float
from citrus.files import write_json
from citrus.training import evaluate
from citrus.training.evaluation import uap_file
from citrus.training.run import pick_device


@dataclass
class AttackFlags(NetworkFlags):
    """Attack a network (run folder, ONNX file or name of the zoo) on its test set: citrus attack RUN --eps 0.2"""

    images: int = 1000
    """Test images to attack."""
    seed: int = 0
    """Seed of the attack."""
    device: str = "auto"
    """cpu, cuda or auto."""


def run(arguments: list[str]) -> int:
    name, rest = take_word(arguments)
    flags, _ = parse_flags(AttackFlags, "attack", rest)
    target, device = find_target(name, "attack", flags), pick_device(flags.device)
    eps, test = target.eps, target.test_set().to(device)
    result, _ = evaluate(
        target.load(test.shape).to(device),
        as_float(test.images),
        test.labels,
        eps,
        group_size=target.group_size,
        attacked=flags.images,
        clip=target.clip,
        seed=flags.seed,
        out=target.folder,
        classes=test.classes,
    )
    path = uap_file(target.folder, eps)
    write_json(path.with_suffix(".json"), asdict(result))
    picture = save_picture(path) or "needs matplotlib: pip install 'citrus-uap[report]'"
    print(f"{evaluation_table(result)}\n\nperturbations  {path}\npicture        {picture}")
    return 0
