"""Certification of groups of images against one shared perturbation: cascade.py is the way in."""

from citrus.certify.cascade import certify as certify
from citrus.certify.result import Certification as Certification
from citrus.certify.result import GroupResult as GroupResult
from citrus.certify.result import Verdict as Verdict
from citrus.certify.run_folder import certify_into as certify_into
from citrus.certify.run_folder import read_rows as read_rows
from citrus.certify.settings import CertifySettings as CertifySettings
