"""Certificates and their check in float64. Nothing here is shared with the code that finds the proofs."""

from citrus.checker.certificate import Certificate as Certificate
from citrus.checker.certificate import read_certificate as read_certificate
from citrus.checker.certificate import write_certificates as write_certificates
from citrus.checker.check import CheckReport as CheckReport
from citrus.checker.check import WrongNetworkError as WrongNetworkError
from citrus.checker.check import certificate_files as certificate_files
from citrus.checker.proofs import GroupCertificate as GroupCertificate
from citrus.checker.proofs import PlaneSource as PlaneSource
from citrus.checker.proofs import Proof as Proof
from citrus.checker.proofs import Round as Round
