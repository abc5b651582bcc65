"""Benchmarks that train and certify many networks; `benchmarks/` of the repository only times parts of the library."""

from citrus.bench.contest import Contest as Contest
from citrus.bench.methods import Bench as Bench
from citrus.bench.methods import Listener as Listener
from citrus.bench.methods import Plan as Plan
from citrus.bench.methods import Row as Row
from citrus.bench.results import write_results as write_results
