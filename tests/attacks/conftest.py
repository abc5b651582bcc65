"""The network that attacks are tried on."""

import pytest
import torch
from torch import nn


@pytest.fixture(scope="module")
def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(72, 16), nn.ReLU(), nn.Linear(16, 3))
    for parameter in network.parameters():
        parameter.data *= 3
    return network
