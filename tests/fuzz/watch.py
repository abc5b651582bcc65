"""One input at a time, with its outcome judged: success or CitrusError is fine, all else is a finding.

A crash or a hang takes the process with it, so the parent (`__main__`) looks at what was written here before.
"""

import json
import resource
import signal
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

import torch

from citrus.errors import CitrusError
from fuzz.mutate import bytes_edit
from fuzz.readers import Reader

SECONDS = 10  # that reading one small file may take
GIB = 1 << 30
MEMORY = 4 * GIB  # of address space beside what the libraries take
RESIDENT = GIB  # that reading one small file may really use


class Slow(BaseException):
    """Reading takes too long."""


@dataclass
class Counts:
    tried: int = 0
    accepted: int = 0
    refused: int = 0
    slowest: float = 0.0
    findings: dict[str, str] = field(default_factory=dict)
    """By kind and place, the traceback's last lines."""


class Watch:
    """Runs one reader on contents, in a folder of its own."""

    def __init__(self, reader: Reader, folder: Path) -> None:
        self.reader, self.folder, self.counts = reader, folder, Counts()
        folder.mkdir(parents=True, exist_ok=True)
        self.seeds = reader.make(folder)
        self.path, self.current = folder / reader.file, folder / "current.bin"
        self.state, self.kept = folder / "state.json", folder / "findings"
        self.kept.mkdir(exist_ok=True)
        for seed in self.seeds:
            self.path.write_bytes(seed)
            reader.read(self.path)  # valid files are read: otherwise nothing would be tried
        self.peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.saved = 0.0
        self.seconds = 0
        """Until an input is given up, 0 for never."""

    def limit(self) -> None:
        """Of this process, from now on."""
        torch.set_num_threads(1)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        signal.signal(signal.SIGALRM, _stop)
        self.seconds = SECONDS

    def edited(self, content: bytes, random: Random) -> bytes:
        """An edit that knows the format, or now and then one that does not."""
        return (self.reader.edit if random.randint(0, 3) else bytes_edit)(content, random)

    def try_one(self, content: bytes) -> None:
        counts, started = self.counts, time.perf_counter()
        self.current.write_bytes(content)
        self.path.write_bytes(content)
        counts.tried += 1
        try:
            self._read()
            counts.accepted += 1
        except CitrusError as error:
            counts.refused += 1
            if _ran_out(error):
                self._found("memory", error, content)
        except (Exception, Slow) as error:
            self._found(type(error).__name__, error, content)
        counts.slowest = max(counts.slowest, time.perf_counter() - started)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if (peak - self.peak) * 1024 > RESIDENT:
            self._found("memory", MemoryError(f"{peak - self.peak} kB more"), content)
        self.peak = max(peak, self.peak)
        self.save()

    def _read(self) -> None:
        if not self.seconds:
            self.reader.read(self.path)
            return
        signal.alarm(self.seconds)
        try:
            self.reader.read(self.path)
        finally:
            signal.alarm(0)

    def save(self, always: bool = False) -> None:
        if always or time.monotonic() - self.saved > 0.2:
            self.saved = time.monotonic()
            self.state.write_text(json.dumps(asdict(self.counts)))

    def _found(self, kind: str, error: BaseException, content: bytes) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f"{Path(f.filename).name}:{f.name}" for f in frames if "/citrus/" in f.filename]
        key = f"{kind} in {(ours or ['?'])[-1]}"
        if key not in self.counts.findings:
            self.counts.findings[key] = "".join(traceback.format_exception(error))[-1500:]
            (self.kept / f"{key.replace('/', '_')}.bin").write_bytes(content)
            self.save(always=True)


def _ran_out(error: BaseException | None) -> bool:
    """Whether somewhere behind an error memory was asked for that is not there."""
    while error is not None:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _stop(number: int, frame: FrameType | None) -> None:
    raise Slow(f"longer than {SECONDS} seconds")
