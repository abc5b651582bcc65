"""Attacks: perturbations per image (PGD), per group and for a whole data set (universal), from one loop."""

from citrus.attacks.ascent import Ascent, ascend, within
from citrus.attacks.pgd import Loss, Model, cross_entropy, fooled, highest_margins, pgd, uniform
from citrus.attacks.universal import UniversalResult, clipped_cross_entropy, consecutive_groups, universal_pgd
from citrus.attacks.whole import attack_all
