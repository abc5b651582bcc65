"""The checker: do the certificates of a folder hold for this network?

    report = check(folder, graph)
    assert not report.failures

It reads files (certificate.py), redoes each proof in float64 with all rounding accounted for (proofs.py, enclosure.py,
tightening.py, arithmetic.py), and then asks whether the proofs that hold imply the claimed count (cover.py). This
package shares no code with the bounds and the search that made the proofs: of all else it knows the fields of a
network's operations (networks/operations.py), files and errors. The images are those in the files: whether they are
images of a data set is for the reader to compare, by `index`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from citrus.checker.arithmetic import Network
from citrus.checker.certificate import fingerprint, read_certificate
from citrus.checker.proofs import Certificate, Evaluator, Proof, Value, implied
from citrus.errors import CitrusError
from citrus.networks.operations import Arithmetic, Graph


@dataclass
class CheckReport:
    """What was checked and what holds. Everything is fine when `failures` is empty."""

    groups: int = 0
    proofs: int = 0
    holding: int = 0
    """Proofs that hold."""
    confirmed: int = 0
    """Groups whose count follows from the proofs that hold."""
    images: int = 0
    """Images in all groups that could be read."""
    certified: int = 0
    """Images certified in the groups that are confirmed: of these, so many survive every shared perturbation."""
    arithmetic: str = ""
    """What the network is: a real function, or every program that runs it in float32."""
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


class WrongNetworkError(CitrusError):
    """The certificate is for another network: nothing can be said about it."""


def check(path: str | Path, network: Graph, progress: Callable[[int, int, str], None] = lambda *_: None) -> CheckReport:
    """Check one certificate or all of a folder. Damaged files are failures; certificates of another network an error.

    `progress` hears the groups done, all groups, and how the last one went.
    """
    if not isinstance(network, Graph):
        raise CitrusError("check needs the network as a Graph: give it citrus.graph(module, image_shape).")
    started = time.perf_counter()
    files = certificate_files(path)
    checker = _Checker(network)
    for done, file in enumerate(files, start=1):
        progress(done, len(files), checker.file(file))
    checker.report.seconds = time.perf_counter() - started
    return checker.report


def certificate_files(path: str | Path) -> list[Path]:
    """The certificates at a path, a file or a folder."""
    path = Path(path)
    files = sorted(path.glob("group-*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise CitrusError(f"{path} holds no certificates, which are called group-00000.safetensors and so on.")
    if not files[0].is_file():
        raise CitrusError(f"There is no certificate {path}.")
    return files


class _Checker:
    """Goes through the files, counting."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.name = graph, fingerprint(graph)
        self.networks: dict[str, Network] = {}  # by arithmetic
        self.report = CheckReport()
        self.eps: float | None = None
        self.seen: set[int] = set()  # images of the data set

    def file(self, path: Path) -> str:
        """Check one file; returns one line about it."""
        self.report.groups += 1
        try:
            certificate = read_certificate(path)
            if certificate.network != self.name:
                raise WrongNetworkError(
                    f"{path} certifies the network with fingerprint {certificate.network[:16]}, but the given network "
                    f"has {self.name[:16]}; give the one it was made for, with the same normalisation."
                )
            return self._group(path.name, certificate)
        except WrongNetworkError:
            raise
        except CitrusError as error:
            self.report.failures.append(str(error))
            return "cannot be used"

    def _group(self, file: str, given: Certificate) -> str:
        network = self._network(given.arithmetic)
        evaluator = Evaluator(network, given.images, given.labels, given.eps, given.intermediate)
        self._same_claim(file, given)
        sums = evaluator.sums(given.duals)
        values = evaluator.values(given.proofs, sums)
        holding = [proof for proof, value in zip(given.proofs, values, strict=True) if value.holds]
        for k, (proof, value) in enumerate(zip(given.proofs, values, strict=True)):
            if not value.holds:
                self.report.failures.append(f"{file}: proof {k} that {_words(proof)} does not hold: {_reason(value)}.")
        self.report.proofs += len(values)
        self.report.holding += len(holding)
        self.report.images += len(given.images)
        claim = f"{given.survivors} of {len(given.images)} images survive"
        if not 0 <= given.survivors <= implied(given, evaluator.classes, holding, sums):
            self.report.failures.append(f"{file}: the proofs that hold do not imply that {claim}.")
            return f"not confirmed that {claim}"
        self.report.confirmed += 1
        self.report.certified += given.survivors
        return claim

    def _network(self, arithmetic: Arithmetic) -> Network:
        """The network as the certificate means it."""
        if arithmetic not in self.networks:
            self.networks[arithmetic] = Network(replace(self.graph, arithmetic=arithmetic))
        return self.networks[arithmetic]

    def _same_claim(self, file: str, certificate: Certificate) -> None:
        """Counts of groups may only be added up when they are about one radius and different images."""
        self.eps = certificate.eps if self.eps is None else self.eps
        self.report.arithmetic = self.report.arithmetic or certificate.arithmetic
        if certificate.arithmetic != self.report.arithmetic:
            raise CitrusError(f"{file} is about {certificate.arithmetic} arithmetic, but the files before it are not.")
        if certificate.eps != self.eps:
            raise CitrusError(f"{file} is about eps {certificate.eps}, but the files before it about {self.eps}.")
        index = certificate.index.tolist()
        if len(set(index)) < len(index) or self.seen.intersection(index):
            raise CitrusError(f"{file} counts an image of the data set that was counted before.")
        self.seen.update(index)


def _words(proof: Proof) -> str:
    some = ", ".join(f"image {i} as {j}" for i, j in proof.choices[:4])
    more = f" and {len(proof.choices) - 4} more" if len(proof.choices) > 4 else ""
    return f"{some}{more} cannot {'all ' if len(proof.choices) > 1 else ''}happen"


def _reason(value: Value) -> str:
    if value.value != value.value:
        return "it is malformed or not a number"
    return f"its value is {value.value:.3g}, rounding at most {value.rounding:.2g}"
