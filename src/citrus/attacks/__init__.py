"""Attacks: perturbations per image (PGD) and per group (universal), from one loop."""

from citrus.attacks.ascent import Ascent as Ascent
from citrus.attacks.ascent import ascend as ascend
from citrus.attacks.ascent import within as within
from citrus.attacks.pgd import Loss as Loss
from citrus.attacks.pgd import Model as Model
from citrus.attacks.pgd import cross_entropy as cross_entropy
from citrus.attacks.pgd import fooled as fooled
from citrus.attacks.pgd import pgd as pgd
from citrus.attacks.pgd import uniform as uniform
from citrus.attacks.universal import UniversalResult as UniversalResult
from citrus.attacks.universal import clipped_cross_entropy as clipped_cross_entropy
from citrus.attacks.universal import consecutive_groups as consecutive_groups
from citrus.attacks.universal import universal_pgd as universal_pgd
