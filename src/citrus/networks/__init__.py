"""Networks: architectures and trained networks by name; any supported nn.Module as an ordered list of operations."""

from citrus.networks.architectures import ARCHITECTURES, build
from citrus.networks.graph import fold, graph
from citrus.networks.operations import Graph, Node
from citrus.networks.saved import load_network
from citrus.networks.trace import Normalize, Statistics, Trace, trace
