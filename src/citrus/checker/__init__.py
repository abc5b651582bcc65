"""Certificates and their check in float64: check.py is the way in. Nothing is shared with what finds the proofs."""

from citrus.checker.check import CheckReport, check
