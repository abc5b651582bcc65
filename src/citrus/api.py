"""The public names of Citrus: `citrus.NAME` is what is imported here."""

from citrus.attacks import Ascent as Ascent
from citrus.attacks import UniversalResult as UniversalResult
from citrus.attacks import pgd as pgd
from citrus.attacks import universal_pgd as universal_pgd
from citrus.bounds import Bounds as Bounds
from citrus.bounds import Box as Box
from citrus.bounds import alpha as alpha
from citrus.bounds import crown as crown
from citrus.bounds import interval as interval
from citrus.bounds import margin_rows as margin_rows
from citrus.certify import Certification as Certification
from citrus.certify import CertifySettings as CertifySettings
from citrus.certify import Verdict as Verdict
from citrus.certify import certify as certify
from citrus.certify import certify_into as certify_into
from citrus.checker import CheckReport as CheckReport
from citrus.checker import check as check
from citrus.data import Dataset as Dataset
from citrus.data import Splits as Splits
from citrus.data import load as _load
from citrus.errors import CitrusError as CitrusError
from citrus.errors import SoundnessError as SoundnessError
from citrus.networks import Graph as Graph
from citrus.networks import Normalize as Normalize
from citrus.networks import build as _build
from citrus.networks import graph as graph
from citrus.networks import load_network as load_network
from citrus.networks.onnx import load_onnx as load_onnx
from citrus.networks.onnx import save_onnx as save_onnx
from citrus.recipes import recipe as recipe
from citrus.training import Evaluation as Evaluation
from citrus.training import Run as Run
from citrus.training import TrainConfig as TrainConfig
from citrus.training import evaluate as evaluate
from citrus.training import load_run as load_run
from citrus.training import train as train

load_data, build_network = _load, _build
