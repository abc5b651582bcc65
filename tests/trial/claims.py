"""What certification claims about tiny networks, beside what is true.

claims = Claims(seed=0).run(groups=1000)
assert not claims.false
"""

from collections import Counter
from dataclasses import dataclass, field, replace

import torch

from citrus.attacks import Ascent
from citrus.certify import Certification, CertifySettings, certify
from citrus.certify.settings import VERIFIERS
from trial.instances import KINDS, Instance

QUICK = CertifySettings(attack=Ascent(steps=6, restarts=2), budget=5.0, intermediate="crown")
SIZES = (1, 2, 3, 4)
"""Of groups."""


@dataclass
class Claims:
    """Certifications of many instances, each compared with the truth; a verifier takes its turn with each group
    size."""

    seed: int = 0
    whole: int = 7
    """Of every so many instances groups of 4 go into the dual of large groups, too."""
    groups: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By kind of network, weights and verifier."""
    certified: int = 0
    """Images that are certified, in all groups."""
    surviving: int = 0
    """Images that survive; where a network has more than two inputs, as far as is known."""
    false: list[str] = field(default_factory=list)
    stages: set[str] = field(default_factory=set)
    """That proved something."""

    def run(self, groups: int) -> "Claims":
        names = sorted(VERIFIERS)
        while self.groups.total() < groups:
            for kind in KINDS:
                for dtype in (torch.float32, torch.float64):
                    instance = Instance.random(kind, self.seed, dtype)
                    for k, size in enumerate(SIZES):
                        settings = replace(QUICK, group_size=size, verifier=names[(self.seed + k) % len(names)])
                        self.compare(instance, settings, self.certification(instance, settings))
                    if self.seed % self.whole == 0:
                        settings = replace(QUICK, group_size=4, searched=1)
                        self.compare(instance, settings, self.certification(instance, settings))
                    self.seed += 1
        return self

    def certification(self, instance: Instance, settings: CertifySettings) -> Certification:
        return certify(instance.network, instance.images, instance.labels, instance.eps, settings)

    def compare(self, instance: Instance, settings: CertifySettings, result: Certification) -> None:
        """Neither count may be false, and no proof may be broken."""
        weights = str(instance.images.dtype).removeprefix("torch.")
        for row in result.rows:
            truth = instance.truth(row.index)
            self.groups[instance.kind, weights, settings.verifier] += 1
            self.certified, self.surviving = self.certified + row.certified, self.surviving + truth
            self.stages |= set(row.stages)
            known = instance.images.shape[-1] == 2
            if row.certified > truth or row.note or (known and row.attacked < truth):
                counts = f"certified {row.certified}, attacked {row.attacked}, true {truth} {row.note}"
                where = f"{instance.kind}, seed {self.seed}, {weights}, {settings.verifier}, images {row.index}"
                self.false.append(f"{where}: {counts}")
