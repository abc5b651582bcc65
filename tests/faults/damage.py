"""Faults in what is read: files that are cut or in which bytes have flipped, and memory that runs out."""

import shutil
from dataclasses import fields, replace
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any

import torch
from support.synthetic import config, splits

from citrus.methods import METHODS
from citrus.methods.base import Batch, MethodLoss
from citrus.training import TrainConfig, Trainer
from faults.child import Child
from faults.compare import Difference, compare, finished
from faults.jobs import Bench
from faults.kinds import goes_on, wrong

ERRORS = (
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to allocate"
    ),
)
PLACES = (
    ("methods.adversarial", "UAT.loss"),
    ("training.evaluation", "universal_pgd"),
    ("bounds.alpha", "lower_planes"),
    ("certify.cascade", "prove_together"),
)
GONE = "a call finds no memory"
ONE_AT_A_TIME = Lock()  # flags of torch are those of a process


def damage(content: bytes, random: Random) -> bytes:
    """Cut at a random byte, or with up to three random bytes flipped."""
    if random.random() < 0.5:
        return content[: random.randrange(len(content))]
    changed = bytearray(content)
    for place in random.sample(range(len(content)), min(len(content), random.randrange(1, 4))):
        changed[place] ^= random.randrange(1, 256)
    return bytes(changed)


def damaged_tensors(bench: Bench, job: str, random: Random) -> Difference:
    """Of a job that was killed: a checkpoint, a network, perturbations or a certificate."""
    return _damaged(bench, job, random, "*.safetensors")


def damaged_rows(bench: Bench, job: str, random: Random) -> Difference:
    """Of a job that was killed: metrics, groups, or what a study found."""
    return _damaged(bench, job, random, "*.jsonl")


def _damaged(bench: Bench, job: str, random: Random, kind: str) -> Difference:
    """It is told with the name of the file, or the result is right all the same."""
    files: list[Path] = []
    while not files:  # one that was just begun may be empty
        out = bench.partly(job, random.random(), kind)
        files = [path for path in sorted(out.rglob(kind)) if path.stat().st_size]
    before, victim = finished(out), random.choice(files)
    whole = victim.read_bytes()
    changed = damage(whole, random)
    victim.write_bytes(changed)
    child = bench.run(job, out)
    ended = child.wait()
    if ended == 0:
        if victim.read_bytes() == changed:  # of what is finished, and not read again: told when somebody reads it
            victim.write_bytes(whole)
        return compare(out, bench.reference(job), {})
    if ended and ("Traceback" in child.text or victim.name not in child.text):
        return wrong(f"exit {ended} with {victim} damaged: {child.text}")
    victim.write_bytes(whole)
    return goes_on(bench, job, out, before)


def damaged_certificate(bench: Bench, job: str, random: Random) -> Difference:
    """`citrus check` names it; deleted, as it says, it is made anew."""
    out = bench.room()
    shutil.copytree(bench.reference(job), out)
    victim = random.choice(sorted(out.rglob("group-*.safetensors")))
    victim.write_bytes(damage(victim.read_bytes(), random))
    child = Child(["check", str(victim.parent)], out.with_suffix(".log"))
    ended = child.wait()
    if ended != 1 or victim.name not in child.text or "Traceback" in child.text:
        return wrong(f"exit {ended}: {child.text}")
    victim.unlink()
    return goes_on(bench, job, out, {})


# --------------------------------------------------------------------------------------------------------------- memory


def starved(bench: Bench, job: str, random: Random) -> Difference:
    """Memory runs out once, in a step of training, an attack or a proof."""
    while True:
        out = bench.room()
        child = bench.run(job, out, partial(starve, random.randrange(1, 40), random.choice(ERRORS)))
        ended = child.wait()
        if GONE in child.text:  # else the call never came
            break
    if ended == 0:
        return compare(out, bench.reference(job), {})
    if "Traceback" in child.text or "emory" not in child.text:
        return wrong(f"exit {ended}: {child.text}")
    return goes_on(bench, job, out, finished(out))


def starve(number: int, error: Exception) -> None:
    """The call of such a number of one of these functions fails when it has done its work."""
    calls = count(1)

    def failing(function: Any) -> Any:
        def inner(*arguments: Any, **more: Any) -> Any:
            result = function(*arguments, **more)
            if next(calls) == number:
                print(GONE)
                raise error
            return result

        return inner

    for place, name in PLACES:
        module = import_module(f"citrus.{place}")
        owner, _, name = name.rpartition(".")
        where = getattr(module, owner) if owner else module
        setattr(where, name, failing(getattr(where, name)))


def starved_step(bench: Bench, job: str, random: Random) -> Difference:
    """A step of any method is tried again."""
    name, at = random.choice(sorted(METHODS)), random.randrange(18)
    moved = moved_twice(config(name), at, random.choice(ERRORS))
    return Difference(differ=len(moved), what=f"{name}, step {at}: {', '.join(moved)}")


def moved_twice(made: TrainConfig, at: int, error: Exception) -> list[str]:
    """What ends otherwise when memory runs out once in this step, than when there was as little from this step on."""
    seen: list[int] = []

    def hungry(self: Any, batch: Batch) -> MethodLoss:
        result = type(made.method).loss(self, batch)
        if disturbed.position == at and not seen:
            seen.append(batch.max_boxes)
            raise error
        return result

    kind = type("Hungry", (type(made.method),), {"loss": hungry})
    method = kind(**{part.name: getattr(made.method, part.name) for part in fields(made.method)})
    disturbed, plain = (Trainer(each, splits()) for each in (replace(made, method=method), made))
    with ONE_AT_A_TIME:
        for _ in disturbed.steps():
            pass
        while plain.position < plain.total_steps:
            if plain.position == at and seen:
                plain.training_step.max_boxes = made.batch_size
            for now in plain.steps():
                if now.step == at:
                    break
    ours, theirs = (trainer.state()[0] for trainer in (disturbed, plain))
    return [name for name in ours if not torch.equal(ours[name], theirs[name])]
