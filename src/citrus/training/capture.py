"""Steps recorded as CUDA graphs: the GPU runs a whole step from one launch instead of waiting for hundreds.

step = Recorded(function, generator)     # function(kind) reads and writes the same tensors every time
step(kind)                               # the first calls of a kind run as they are, then it is recorded and replayed
"""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

WARM_UP = 3  # ordinary calls before a recording: libraries choose their kernels, compilers finish


class Recorded:
    """A function of a kind that is recorded once per kind. Without CUDA, or `record`, it is just called."""

    def __init__(self, function: Callable[[Any], None], generator: torch.Generator, record: bool = True) -> None:
        self.function = function
        self.generator = generator
        self.recordings: dict[Hashable, Any] = {}
        self.calls: Counter[Hashable] = Counter()
        self.stream: Any = torch.cuda.Stream(generator.device) if record and generator.device.type == "cuda" else None
        self.pool: Any = None

    def __call__(self, kind: Hashable) -> None:
        if self.stream is None:
            self.function(kind)
        elif self.calls[kind] < WARM_UP:
            self.calls[kind] += 1
            self.stream.wait_stream(torch.cuda.current_stream())  # beside all else, as a recording wants it
            with torch.cuda.stream(self.stream):
                self.function(kind)
            torch.cuda.current_stream().wait_stream(self.stream)
        else:
            if kind not in self.recordings:
                self.recordings[kind] = self._record(kind)
            self.recordings[kind].replay()

    def forget(self) -> None:
        """Drop all recordings, so that the next calls run as they are and record anew."""
        self.recordings, self.calls, self.pool = {}, Counter(), None

    def _record(self, kind: Hashable) -> Any:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            self.function(kind)
        self.pool = graph.pool()
        return graph


class Glance:
    """Reads a few device values without waiting for the device: what it shows may be some steps old."""

    def __init__(self, source: Tensor) -> None:
        self.source = source
        self.arrived = torch.zeros_like(source, device="cpu", pin_memory=source.is_cuda)

    def __call__(self) -> list[float]:
        self.arrived.copy_(self.source, non_blocking=True)
        return list(self.arrived.tolist())
