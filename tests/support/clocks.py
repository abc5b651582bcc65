"""Clocks that tests set."""


class Ticks:
    """A clock that stands still unless it is told to go on; `step` seconds pass at each look at it."""

    def __init__(self, step: float = 0.0) -> None:
        self.time, self.step = 0.0, step

    def __call__(self) -> float:
        self.time += self.step
        return self.time
