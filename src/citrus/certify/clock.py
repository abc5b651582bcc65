"""What each group may take: every group has a clock of its own, and is charged for its own work only.

A search spends the time of its group. A step of the joint refinement works on the sets of many groups at once; its time
is divided among them by their members in it. A group whose clock has run out stops, the others go on.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


class Clock:
    """The seconds that one group may take, and those it took."""

    def __init__(self, seconds: float = float("inf"), now: Callable[[], float] = time.perf_counter) -> None:
        self.seconds, self.now = seconds, now
        self.spent = 0.0

    @property
    def left(self) -> float:
        return max(0.0, self.seconds - self.spent)

    @property
    def over(self) -> bool:
        return self.spent >= self.seconds

    @contextmanager
    def running(self) -> Iterator[None]:
        """Charge what is done inside."""
        started = self.now()
        try:
            yield
        finally:
            self.spent += self.now() - started


class SharedTime:
    """The groups whose sets are worked on in one batch from now on: who pays for a step, and who has to stop.

    The sets of `allied` groups are of use only if all of them are proved: once one is given up, its group stops.
    """

    def __init__(self, clocks: Sequence[Clock], allied: bool = False) -> None:
        self.clocks, self.allied = clocks, allied
        self.lost: set[int] = set()
        self.since = clocks[0].now()

    def charge(self, groups: Tensor) -> None:
        """Divide the time since the last call among members, given the group of each."""
        now = self.clocks[0].now()
        for group, count in zip(*(t.tolist() for t in groups.unique(return_counts=True)), strict=True):
            self.clocks[group].spent += (now - self.since) * count / len(groups)
        self.since = now

    def give_up(self, groups: Tensor) -> None:
        """A set of each of these groups cannot be proved."""
        if self.allied:
            self.lost.update(groups.tolist())

    def stopped(self, groups: Tensor) -> Tensor:
        """Which of these groups have given up or have no time left, as booleans."""
        over = {group for group, clock in enumerate(self.clocks) if clock.over}
        return torch.isin(groups, groups.new_tensor(sorted(self.lost | over)))
