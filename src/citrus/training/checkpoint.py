"""An optimiser's state as named tensors, so that a checkpoint is one safetensors file and nothing is pickled."""

import torch
from torch import Tensor


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's tensors by name; its settings are in the configuration already."""
    state = optimizer.state_dict()["state"]
    return {f"{i}.{key}": torch.as_tensor(value) for i, entry in state.items() for key, value in entry.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        i, key = name.split(".")
        state.setdefault(int(i), {})[key] = tensor
    rates = [group["lr"] for group in optimizer.param_groups]
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate  # torch would put a copy in the place of a tensor that others write to
