"""Citrus: networks that are provably robust against universal perturbations."""
