"""Steps that never wait for the device: recording, glances, memory that runs out, and compiled kernels."""

import threading
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch
from faults.damage import moved_twice
from support.synthetic import config, splits

import citrus.training.step as step_module
from citrus.errors import CitrusError
from citrus.methods import IBP, METHODS, UAT, Batch, MethodLoss
from citrus.methods.base import in_pieces
from citrus.networks.kernels import compiling
from citrus.training import Trainer
from citrus.training.schedule import Phase, moment
from citrus.training.step import WARM_UP, Recorded

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.network.parameters()])


def finished(settings: Any, device: str = "cpu") -> Trainer:
    trainer = Trainer(settings, splits(), device)
    for _ in trainer.epochs():
        pass
    return trainer


def test_without_cuda_a_recorded_function_is_just_called() -> None:
    seen: list[str] = []
    recorded = Recorded(seen.append, torch.Generator())
    for kind in ("a", "b", "a", "a", "a", "a"):
        recorded(kind)
    assert seen == ["a", "b", "a", "a", "a", "a"]
    assert not recorded.recordings


@needs_cuda
def test_recorded_steps_equal_eager_ones() -> None:
    for name in ("citrus", "ibp", "uat"):
        eager, recorded = (
            finished(config(name, epochs=4, record=r, precision="float32"), "cuda") for r in (False, True)
        )
        assert recorded.recorded.recordings
        torch.testing.assert_close(weights(eager), weights(recorded), rtol=1e-3, atol=1e-3)


@needs_cuda
def test_a_kind_is_recorded_after_its_warm_up() -> None:
    counter = torch.zeros((), device="cuda")
    recorded = Recorded(lambda kind: counter.add_(1) and None, torch.Generator("cuda"))
    for _ in range(WARM_UP + 4):
        recorded("kind")
    assert counter.item() == WARM_UP + 4


def test_a_glance_shows_what_the_device_holds() -> None:
    step = Trainer(config(), splits()).training_step
    step.sums[0] = 5
    assert step.glance() == [5.0, 0.0, 0.0, 0.0, 0.0]


def test_phases_change_only_where_a_kind_of_step_begins() -> None:
    settings = config("citrus", epochs=6, warmup_epochs=1, ramp_epochs=2, milestones=())
    phases = [moment(settings, step, 10).phase for step in range(60)]
    assert phases[:10] == [Phase(robust=False, regularized=True, ramping=True, stage=0)] * 10
    assert phases[10:29] == [Phase(robust=True, regularized=True, ramping=True, stage=0)] * 19
    assert phases[29:] == [Phase(robust=True, regularized=False, ramping=False, stage=0)] * 31


def test_what_the_device_reads_is_what_the_schedule_says() -> None:
    trainer = Trainer(config("citrus", epochs=4, warmup_epochs=1, ramp_epochs=2, milestones=(2,)), splits())
    for step, _ in enumerate(trainer.steps()):
        now = moment(trainer.config, step, trainer.steps_per_epoch)
        expected = [step, now.eps, now.ramp, now.regularizer, now.lr]
        assert trainer.training_step.scalars.tolist() == expected


@dataclass(frozen=True)
class Hungry(IBP):
    """Asks for more memory than there is until boxes are bounded in small pieces."""

    limit: int = 4
    asked: ClassVar[list[int]] = []
    error: ClassVar[Exception] = torch.OutOfMemoryError("pretended")

    def loss(self, batch: Batch) -> MethodLoss:
        self.asked.append(batch.max_boxes)
        if batch.max_boxes > self.limit:
            raise self.error
        return super().loss(batch)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError("no room"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ],
    ids=["cuda", "python", "cpu"],
)
def test_a_step_that_runs_out_of_memory_is_repeated_in_smaller_pieces(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    Hungry.asked.clear()
    monkeypatch.setattr(Hungry, "error", error)
    settings = config("ibp")
    hungry = finished(replace(settings, method=Hungry(limit=4)))
    assert hungry.training_step.max_boxes == 2  # 10, 5, 2
    assert Hungry.asked[:4] == [Hungry.asked[0], 10, 5, 2]
    assert set(Hungry.asked[3:]) == {2}
    torch.testing.assert_close(weights(hungry), weights(finished(settings)), rtol=1e-4, atol=1e-5)


@dataclass(frozen=True)
class HungryUAT(UAT):
    """Runs out of memory at the end of every first attempt at a step, when its perturbation has moved already."""

    seen: ClassVar[list[torch.Tensor]] = []

    def loss(self, batch: Batch) -> MethodLoss:
        result = super().loss(batch)
        self.seen.append(batch.state["delta"].clone())
        if len(self.seen) % 2:
            raise torch.OutOfMemoryError("pretended")
        return result


def test_a_repeated_step_begins_with_what_the_method_had_kept() -> None:
    HungryUAT.seen.clear()
    settings = config("uat", epochs=1, warmup_epochs=0, ramp_epochs=0, milestones=(), batch_size=30)
    plain, hungry = finished(settings), finished(replace(settings, method=HungryUAT()))
    assert len(HungryUAT.seen) == 2 * plain.total_steps
    for first, second in zip(HungryUAT.seen[::2], HungryUAT.seen[1::2], strict=True):
        assert torch.equal(first, second)
    assert torch.equal(weights(plain), weights(hungry))
    assert all(torch.equal(v, hungry.state()[0][k]) for k, v in plain.state()[0].items())


@pytest.mark.parametrize("name", METHODS)
def test_no_method_moves_anything_twice_when_memory_runs_out(name: str) -> None:
    """In the second of four steps at full eps: weights, moments and what the method keeps are those of one step."""
    made = config(name, epochs=2, warmup_epochs=0, ramp_epochs=0, milestones=(), batch_size=30)
    assert moved_twice(made, 1, MemoryError()) == []


def test_a_step_that_fails_in_another_way_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    Hungry.asked.clear()
    monkeypatch.setattr(Hungry, "error", RuntimeError("something else"))
    with pytest.raises(RuntimeError, match="something else"):
        finished(replace(config("ibp"), method=Hungry(limit=4)))
    assert len(Hungry.asked) == 1


def test_a_step_that_has_moved_weights_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would move them twice."""

    def hungry(*_: Any) -> None:
        raise MemoryError

    trainer = Trainer(config("ibp"), splits())
    monkeypatch.setattr(step_module, "update_running", hungry)
    with pytest.raises(CitrusError, match="Memory ran out while step 0 moved the weights"):
        next(trainer.steps())


def test_memory_that_never_suffices_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(CitrusError, match="batch_size 10: make it smaller"):
        finished(replace(config("ibp"), method=Hungry(limit=0)))


@pytest.mark.filterwarnings("ignore")  # of torch, about itself
def test_compiled_steps_equal_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced, differentiated and cut in two by torch.compile; only its kernels, half a minute of C++, are left out."""
    compilers: list[bool] = []

    def without_kernels(on: bool) -> AbstractContextManager[None]:
        compilers.append(on)
        return compiling(on, "aot_eager_decomp_partition")

    monkeypatch.setattr(step_module, "compiling", without_kernels)
    settings = config("ibp", network="mlp", epochs=1, warmup_epochs=0, ramp_epochs=0, milestones=())
    plain, compiled = (finished(replace(settings, compile=c)) for c in (False, True))
    torch.testing.assert_close(weights(plain), weights(compiled), rtol=1e-4, atol=1e-5)
    assert compilers == [False] * 6 + [True] * 6


def test_boxes_that_are_bounded_again_know_what_was_asked_for_the_first_time() -> None:
    """On a GPU the backward pass runs in a thread of its own, which would not know that kernels are to be compiled."""
    asked = ContextVar("asked", default="nothing")
    seen: list[str] = []

    def double(piece: torch.Tensor) -> tuple[torch.Tensor]:
        seen.append(asked.get())
        return (2 * piece.relu(),)

    x = torch.rand(4, requires_grad=True)
    token = asked.set("to compile")
    (result,) = in_pieces(double, 2, x)
    asked.reset(token)
    backward = threading.Thread(target=result.sum().backward)
    backward.start()
    backward.join()
    assert seen == ["to compile"] * 4
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 4


def test_the_cosine_schedule_ends_at_zero_and_begins_to_fall_when_eps_is_full() -> None:
    settings = config("ibp", epochs=10, warmup_epochs=1, ramp_epochs=3, milestones=(), lr=0.01, lr_schedule="cosine")
    rates = [moment(settings, step, 20).lr for step in range(200)]
    assert rates[:80] == [0.01] * 80
    assert rates[-1] < 1e-5
    assert all(a >= b for a, b in pairwise(rates))
