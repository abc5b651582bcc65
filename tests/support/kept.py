"""The networks of tests/checker/fixtures."""

from pathlib import Path

from citrus.files import load_tensors
from citrus.networks import Graph, operations

FIXTURES = Path(__file__).parents[1] / "checker" / "fixtures"


def kept_network(name: str) -> Graph:
    """A network by its plain operations, so that no folding changes the last bits of a weight."""
    tensors, header = load_tensors(FIXTURES / f"{name}.safetensors")
    nodes = []
    for k, (kind, inputs, shape, plain) in enumerate(header["nodes"]):
        fields = {name: tuple(v) if isinstance(v, list) else v for name, v in plain.items()}
        fields |= {key.split(".")[1]: value for key, value in tensors.items() if key.startswith(f"{k}.")}
        nodes.append(operations.Node(getattr(operations, kind)(**fields), tuple(inputs), kind, tuple(shape)))
    return Graph(tuple(nodes), tuple(header["input_shape"]))
