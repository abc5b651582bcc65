"""The public names of Citrus: `citrus.NAME` is what is imported here."""

from citrus.attacks import Ascent, UniversalResult, attack_all, pgd, universal_pgd
from citrus.bounds import Bounds, Box, alpha, crown, interval, margin_rows
from citrus.certify import Certification, CertifySettings, Verdict, certify, certify_into, certify_targets
from citrus.checker import CheckReport, check
from citrus.data import Dataset, Splits
from citrus.data import load as load_data
from citrus.errors import CitrusError
from citrus.networks import Graph, Normalize, graph, load_network
from citrus.networks import build as build_network
from citrus.networks.onnx import load_onnx, save_onnx
from citrus.recipes import recipe
from citrus.training import Evaluation, Run, TrainConfig, evaluate, load_run, train
