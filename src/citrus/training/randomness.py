"""Random numbers that depend on where in a run they are used, not on what ran before: so resuming is exact."""

import hashlib

import torch


def seed_of(seed: int, purpose: str, number: int = 0) -> int:
    """The seed for one purpose at one epoch or step of a run."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{number}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def stream(seed: int, purpose: str, number: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator for one purpose at one epoch or step of a run."""
    return torch.Generator(device).manual_seed(seed_of(seed, purpose, number))
