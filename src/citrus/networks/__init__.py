"""Networks: architectures and trained networks by name; any supported nn.Module as an ordered list of operations."""

from citrus.networks.architectures import ARCHITECTURES as ARCHITECTURES
from citrus.networks.architectures import build as build
from citrus.networks.graph import fold as fold
from citrus.networks.graph import graph as graph
from citrus.networks.operations import Graph as Graph
from citrus.networks.operations import Node as Node
from citrus.networks.saved import load_network as load_network
from citrus.networks.trace import Normalize as Normalize
from citrus.networks.trace import Statistics as Statistics
from citrus.networks.trace import Trace as Trace
from citrus.networks.trace import trace as trace
