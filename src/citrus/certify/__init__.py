"""Certification of groups of images against one shared perturbation: cascade.py is the way in."""

from citrus.certify.cascade import certify
from citrus.certify.result import Certification, GroupResult, Verdict
from citrus.certify.run_folder import certify_into, read_rows
from citrus.certify.settings import CertifySettings
from citrus.certify.targets import Targets, certify_targets
