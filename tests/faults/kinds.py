"""The faults, one function for each kind: it injects one into a job, lets the job go on, and compares."""

import ctypes
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

from faults.compare import Difference, compare, finished
from faults.jobs import Bench

Fault = Callable[[Bench, str, Random], Difference]


class NotHere(Exception):
    """A fault that cannot be injected on this machine, and why."""


def wrong(text: str) -> Difference:
    return Difference(differ=1, what=f"{text[:40]} ... {text[-500:]}")


def goes_on(bench: Bench, job: str, out: Path, before: dict[Path, list[str]]) -> Difference:
    """The same command again: now it comes to its end, and the folder holds what it should."""
    child = bench.run(job, out)
    ended = child.wait()
    return wrong(f"exit {ended}: {child.text}") if ended else compare(out, bench.reference(job), before)


def refused(
    bench: Bench, job: str, out: Path, word: str, prepare: Callable[[], None] | None = None
) -> Difference | None:
    """None if the command ends with exit code 1 and one sentence that says this."""
    child = bench.run(job, out, prepare)
    ended = child.wait()
    return None if ended == 1 and word in child.error else wrong(f"exit {ended}: {child.text}")


# -------------------------------------------------------------------------------------------------------------- signals


def killed(bench: Bench, job: str, random: Random) -> Difference:
    """kill -9 at a random moment."""
    while True:
        out, moment = bench.room(), random.random() * bench.seconds[job]
        child = bench.run(job, out)
        child.until(moment)
        child.send(signal.SIGKILL)
        if child.wait() < 0:  # else it was over before
            return goes_on(bench, job, out, finished(out))


def terminated(bench: Bench, job: str, random: Random) -> Difference:
    """SIGTERM at a random moment."""
    return _asked_to_stop(bench, job, random, signal.SIGTERM)


def interrupted(bench: Bench, job: str, random: Random) -> Difference:
    """Ctrl-C at a random moment."""
    return _asked_to_stop(bench, job, random, signal.SIGINT)


def _asked_to_stop(bench: Bench, job: str, random: Random, number: signal.Signals) -> Difference:
    ended = 0
    while ended == 0:  # else it was over before
        out, moment = bench.room(), random.random() * bench.seconds[job]
        child = bench.run(job, out)
        child.until(moment, out)
        child.send(number)
        ended = child.wait()
    if ended == -number and compare(out, bench.reference(job), {}) == Difference():
        return Difference()  # everything was done, and Python about to end
    if ended != 128 + number or "Traceback" in child.text:
        return wrong(f"exit {ended}: {child.text}")
    return goes_on(bench, job, out, finished(out))


# --------------------------------------------------------------------------------------------------------------- places


def full_disk(bench: Bench, job: str, random: Random) -> Difference:
    """A real file system with room for a random part of the files; then there is more."""
    most = bench.size(job) // 1024
    with small_disk(bench) as out:
        while True:
            most = random.randrange(4, most)
            _mount("-o", f"remount,size={most}k", out.parent)
            child = bench.run(job, out)
            ended = child.wait()
            if ended:
                break
            shutil.rmtree(out)  # there was room for all
        before = finished(out)
        _mount("-o", "remount,size=64m", out.parent)
        if ended != 1 or "No space left on device" not in child.error:
            return wrong(f"exit {ended}: {child.text}")
        return goes_on(bench, job, out, before)


def file_limit(bench: Bench, job: str, random: Random) -> Difference:
    """No file may grow beyond a random number of bytes, so that writes fail half way."""
    most = random.randrange(100, bench.largest(job))
    out, limit = bench.room(), partial(resource.setrlimit, resource.RLIMIT_FSIZE, (most, most))
    return refused(bench, job, out, "File too large", limit) or goes_on(bench, job, out, finished(out))


def read_only(bench: Bench, job: str, random: Random) -> Difference:
    """The disk of a job that was killed becomes read-only, and then not."""
    half = bench.partly(job, random.random())
    with small_disk(bench) as out:
        shutil.move(half, out)
        before = finished(out)
        _mount("-o", "remount,ro", out.parent)
        told = refused(bench, job, out, "Read-only file system")
        _mount("-o", "remount,rw", out.parent)
        return told or goes_on(bench, job, out, before)


def no_permission(bench: Bench, job: str, random: Random) -> Difference:
    """Folders that may be read and not written, by somebody who is bound by that."""
    out = bench.partly(job, random.random())
    before, folders = finished(out), [out, *(path for path in out.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    told = refused(bench, job, out, "Permission denied", _powerless)
    for folder in folders:
        folder.chmod(0o755)
    return told or goes_on(bench, job, out, before)


def _powerless() -> None:
    """Root without its capabilities is a user like others."""
    version, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset(version, none) == 0


def two_processes(bench: Bench, job: str, random: Random) -> Difference:
    """A second process on a folder that one writes is refused, and the first notices nothing."""
    while True:
        out, moment = bench.room(), random.random() * bench.seconds[job]
        first = bench.run(job, out)
        if first.until(0.7 * moment, out, "*.jsonl"):
            first.send(signal.SIGSTOP)
            told = refused(bench, job, out, f"is being written by process {first.process.pid} on ")
            first.send(signal.SIGCONT)
            ended = first.wait()
            return told or (wrong(first.text) if ended else compare(out, bench.reference(job), {}))


@contextmanager
def small_disk(bench: Bench) -> Iterator[Path]:
    """A folder to be made on a file system of its own, in memory."""
    disk = bench.room()
    disk.mkdir(parents=True)
    try:
        _mount("-t", "tmpfs", "-o", "size=64m", "tmpfs", disk)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotHere("no file system can be mounted") from error
    try:
        yield disk / "run"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True, capture_output=True)
