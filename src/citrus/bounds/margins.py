"""What a bound is asked about: margins of the true class over each other class, and the loss they give."""

import torch
from torch import Tensor


def wrong_labels(labels: Tensor, classes: int) -> Tensor:
    """The other classes of each label in increasing order: (batch, classes - 1)."""
    order = torch.arange(classes - 1, device=labels.device)
    return order + (order >= labels[:, None]).long()


def margin_rows(labels: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Specification rows e_y - e_j for each wrong label j: (batch, classes - 1, classes)."""
    identity = torch.eye(classes, dtype=dtype, device=labels.device)
    return identity[labels][:, None] - identity[wrong_labels(labels, classes)]


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """z_y - z_j for each wrong label j: (batch, classes - 1)."""
    return logits.gather(1, labels[:, None]) - logits.gather(1, wrong_labels(labels, logits.shape[1]))


def margin_loss(lower: Tensor) -> Tensor:
    """log(1 + sum_j exp(-m_j)) per row: cross-entropy of the worst case (CITRUS paper, eq. 2)."""
    zero = lower.new_zeros(lower.shape[0], 1)
    return torch.logsumexp(torch.cat([zero, -lower], 1), 1)
