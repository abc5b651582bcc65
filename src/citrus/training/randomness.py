"""Random numbers that depend on where in a run they are used, not on what ran before: so resuming is exact."""

import hashlib

import torch


def stream(seed: int, purpose: str, number: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator for one purpose at one epoch or step of a run."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{number}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))
