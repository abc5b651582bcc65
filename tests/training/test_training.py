"""The loop as a whole: it learns, it resumes exactly, and it loses nothing when something goes wrong."""

import fcntl
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest
import torch
from support.synthetic import config, splits
from torch import nn

from citrus.errors import CitrusError
from citrus.files import load_tensors, read_lines, save_tensors
from citrus.methods import METHODS
from citrus.training import Stopped, Trainer, load_run, train
from citrus.training import run as run_module

TIMES = {"seconds", "images_per_second"}


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_tensors(path / "model.safetensors")[0]


def rows(path: Path) -> list[dict[str, float]]:
    found, broken = read_lines(path / "metrics.jsonl")
    assert not broken
    return [{k: v for k, v in row.items() if k not in TIMES} for row in found]


def assert_same_run(a: Path, b: Path) -> None:
    assert rows(a) == rows(b)
    first, second = weights(a), weights(b)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[k], second[k]) for k in first)
    kept = [load_tensors(p / "checkpoints" / "last.safetensors")[0] for p in (a, b)]
    assert all(torch.equal(kept[0][k], kept[1][k]) for k in kept[0])
    results = [json.loads((p / "summary.json").read_text()) for p in (a, b)]
    assert all(results[0][k] == results[1][k] for k in results[0] if "seconds" not in k)


@pytest.mark.parametrize("name", METHODS)
def test_resume_is_exact_for_every_method(name: str, tmp_path: Path) -> None:
    data = splits()
    train(config(name), tmp_path / "whole", splits=data)
    for stop in (4, 6, 11):  # inside an epoch, at its end, and inside the next after the ramp began
        with pytest.raises(Stopped):
            train(config(name), tmp_path / "parts", splits=data, stop_after=stop, resume=stop != 4)
    train(config(name), tmp_path / "parts", splits=data, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("stop", range(1, 19))
def test_a_run_may_stop_at_any_step(stop: int, tmp_path: Path, whole_run: Path) -> None:
    settings = config("citrus_si", network="smallcnn")
    with pytest.raises(Stopped):
        train(settings, tmp_path, splits=splits(), stop_after=stop)
    train(settings, tmp_path, splits=splits(), resume=True)
    assert_same_run(whole_run, tmp_path)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole")
    train(config("citrus_si", network="smallcnn"), path, splits=splits())
    return path


def test_resume_after_losing_the_last_checkpoint(tmp_path: Path, whole_run: Path) -> None:
    """As after kill -9: metrics are ahead of the checkpoint, and a row is cut in the middle."""
    settings = config("citrus_si", network="smallcnn")
    with pytest.raises(Stopped):
        train(settings, tmp_path, splits=splits(), stop_after=7)
    old = (tmp_path / "checkpoints" / "last.safetensors").read_bytes()
    with pytest.raises(Stopped):
        train(settings, tmp_path, splits=splits(), stop_after=13, resume=True)
    (tmp_path / "checkpoints" / "last.safetensors").write_bytes(old)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "st')
    train(settings, tmp_path, splits=splits(), resume=True)
    assert_same_run(whole_run, tmp_path)


def test_a_killed_process_leaves_a_run_that_resumes(tmp_path: Path) -> None:
    """A real kill -9 in the middle of training, in another process."""
    out = tmp_path / "killed"
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        f"import torch; torch.set_num_threads({torch.get_num_threads()})\n"  # sums depend on the number of threads
        "import time; from support.synthetic import config, splits; from citrus.training import Events, train\n"
        "slow = Events(on_step=lambda p: time.sleep(0.05))\n"
        f"train(config('ibp'), {str(out)!r}, splits=splits(), events=slow)"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 120
    while not (out / "checkpoints" / "last.safetensors").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    train(config("ibp"), out, splits=splits(), resume=True)
    train(config("ibp"), tmp_path / "whole", splits=splits())
    assert_same_run(tmp_path / "whole", out)


def test_ctrl_c_keeps_the_state(tmp_path: Path) -> None:
    def interrupt(progress: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Stopped, match="step 1 of 18"):
        train(config(), tmp_path, splits=splits(), events=run_module.Events(on_step=interrupt))
    assert load_tensors(tmp_path / "checkpoints" / "last.safetensors")[1]["step"] == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_exit_code_says_which_signal_came(number: signal.Signals, code: int, tmp_path: Path) -> None:
    def stop(progress: object) -> None:
        os.kill(os.getpid(), number)

    with pytest.raises(Stopped) as stopped:
        train(config(), tmp_path, splits=splits(), events=run_module.Events(on_step=stop))
    assert stopped.value.code == code
    assert pickle.loads(pickle.dumps(stopped.value)).code == code


@pytest.mark.parametrize("damage", [b"", b"{\n", b"\xff"], ids=["gone", "no row", "no text"])
def test_metrics_that_are_damaged_are_made_anew_from_the_checkpoint(damage: bytes, tmp_path: Path) -> None:
    settings = config("standard")
    with pytest.raises(Stopped):
        train(settings, tmp_path / "parts", splits=splits(), stop_after=13)
    (tmp_path / "parts" / "metrics.jsonl").write_bytes(damage)
    train(settings, tmp_path / "parts", splits=splits(), resume=True)
    train(settings, tmp_path / "whole", splits=splits())
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_a_checkpoint_of_an_older_version_has_its_metrics_in_the_file(tmp_path: Path) -> None:
    settings, checkpoint = config("standard"), tmp_path / "parts" / "checkpoints" / "last.safetensors"
    with pytest.raises(Stopped):
        train(settings, tmp_path / "parts", splits=splits(), stop_after=13)
    tensors, header = load_tensors(checkpoint)
    assert len(header.pop("metrics")) == 2
    save_tensors(checkpoint, tensors, header)
    train(settings, tmp_path / "parts", splits=splits(), resume=True)
    train(settings, tmp_path / "whole", splits=splits())
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_a_folder_that_another_process_trains_in_is_refused(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as other:
        other.write("process 1 on elsewhere")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(CitrusError, match="is being written by process 1 on elsewhere"):
            train(config(), tmp_path, splits=splits())
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_training_learns_and_certifies(tmp_path: Path) -> None:
    """On an easy problem CITRUS reaches a network that interval bounds certify."""
    run = train(config(epochs=20, milestones=(15,), ramp_epochs=10), tmp_path, splits=splits(300))
    assert run.evaluation
    assert run.evaluation.clean >= 90
    assert run.evaluation.ibp_certified >= 60
    assert run.evaluation.ibp_certified <= run.evaluation.pgd <= run.evaluation.clean
    again = load_run(tmp_path).network
    x = torch.rand(4, 1, 12, 12)
    assert torch.equal(again(x), run.network(x))
    assert not again.training


def test_batch_norm_networks_train(tmp_path: Path) -> None:
    """With BatchNorm: statistics of the saved network are the population's, and resume stays exact."""
    settings = config("citrus", batch_size=10, epochs=2, milestones=(), network="cnn7", test_images=1)
    small = splits(20, 1, 1)
    with pytest.raises(Stopped):
        train(settings, tmp_path / "parts", splits=small, stop_after=3)
    train(settings, tmp_path / "parts", splits=small, resume=True)
    run = train(settings, tmp_path / "whole", splits=small)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    norm = next(m for m in run.network.modules() if isinstance(m, nn.BatchNorm2d))
    assert norm.running_mean is not None
    assert norm.running_mean.abs().sum() > 0


@pytest.mark.parametrize("named", ["folder", "file"])
def test_a_run_may_start_from_a_finished_one(named: str, tmp_path: Path, whole_run: Path) -> None:
    """With steps of no size the network stays what it was, whatever the seed."""
    start = whole_run if named == "folder" else whole_run / "model.safetensors"
    settings = config("citrus_si", network="smallcnn", start=str(start), lr=1e-30, seed=7)
    before = weights(whole_run)
    fresh = dict(Trainer(config("citrus_si", network="smallcnn", seed=7), splits()).network.named_parameters())
    assert any(not torch.equal(fresh[k], before[k]) for k in fresh)
    train(settings, tmp_path / "more", splits=splits())
    after = weights(tmp_path / "more")
    assert all(torch.equal(before[k], after[k]) for k in fresh)
    assert json.loads((tmp_path / "more" / "config.json").read_text())["start"] == str(start)


def test_a_start_that_is_no_such_network_is_told(tmp_path: Path, whole_run: Path) -> None:
    says = r"start: .* holds another network than this run trains: "
    with pytest.raises(CitrusError, match=says + "name differ"):
        Trainer(config("citrus_si", network="mlp", start=str(whole_run)), splits())
    other = config("citrus_si", network="smallcnn", normalize=False, start=str(whole_run))
    with pytest.raises(CitrusError, match=says + "mean, std differ"):
        Trainer(other, splits())
    checkpoint = whole_run / "checkpoints" / "last.safetensors"
    with pytest.raises(CitrusError, match=r"last.safetensors holds no network of Citrus"):
        Trainer(config("citrus_si", network="smallcnn", start=str(checkpoint)), splits())
    with pytest.raises(CitrusError, match=r"There is no network '.*nowhere'"):
        Trainer(config("citrus_si", start=str(tmp_path / "nowhere")), splits())


def test_training_needs_no_optional_package(tmp_path: Path) -> None:
    """What the command line, pictures and ONNX are made with may be missing."""
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "sys.modules.update(dict.fromkeys(('tyro', 'rich', 'matplotlib', 'onnx', 'highspy', 'PIL', 'mlxtend')))\n"
        "from support.synthetic import config, splits; import citrus\n"
        "settings = config('ibp', epochs=1, warmup_epochs=0, ramp_epochs=0, milestones=(), test_images=1)\n"
        f"print(citrus.train(settings, {str(tmp_path / 'run')!r}, splits=splits(10, 1, 1)).evaluation)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Evaluation(eps=0.05, ")


def test_seed_decides_everything() -> None:
    def after_two_steps(seed: int) -> torch.Tensor:
        trainer = Trainer(config(seed=seed), splits())
        list(islice(trainer.steps(), 2))
        return torch.cat([p.detach().flatten() for p in trainer.network.parameters()])

    assert torch.equal(after_two_steps(1), after_two_steps(1))
    assert not torch.equal(after_two_steps(1), after_two_steps(2))


# -------------------------------------------------------------------------------------------------- bad input


def test_nan_in_the_loss_stops_and_keeps_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = METHODS["ibp"].loss

    def broken(self, batch):  # type: ignore[no-untyped-def]
        result = original(self, batch)
        return type(result)(result.loss * float("nan"), result.boxes)

    with pytest.raises(Stopped):
        train(config("ibp"), tmp_path, splits=splits(), stop_after=5)
    before = (tmp_path / "checkpoints" / "last.safetensors").read_bytes()
    monkeypatch.setattr(METHODS["ibp"], "loss", broken)
    with pytest.raises(CitrusError, match="loss became infinite or NaN at step 6"):
        train(config("ibp"), tmp_path, splits=splits(), resume=True)
    assert load_tensors(tmp_path / "checkpoints" / "last.safetensors")[1]["step"] == 6
    assert before
    monkeypatch.undo()
    train(config("ibp"), tmp_path, splits=splits(), resume=True)
    train(config("ibp"), tmp_path / "whole", splits=splits())
    assert_same_run(tmp_path / "whole", tmp_path)


def test_a_folder_of_another_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train(config(), tmp_path, splits=splits(), stop_after=1)
    before = (tmp_path / "config.json").read_text()
    with pytest.raises(CitrusError, match=r"another configuration \(lr differ"):
        train(config(lr=0.02), tmp_path, splits=splits(), resume=True)
    with pytest.raises(CitrusError, match="already holds this run: add --resume"):
        train(config(), tmp_path, splits=splits())
    with pytest.raises(CitrusError, match="no run to resume"):
        train(config(), tmp_path / "empty", splits=splits(), resume=True)
    assert (tmp_path / "config.json").read_text() == before
    assert not (tmp_path / "empty").exists()


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "foreign"])
def test_a_damaged_checkpoint_is_told(damage: str, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train(config(), tmp_path, splits=splits(), stop_after=2)
    path = tmp_path / "checkpoints" / "last.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "truncate":
        content = content[: len(content) // 2]
    elif damage == "flip":
        content[-5] ^= 0x10
    else:
        content = bytearray(b"" if damage == "empty" else b"not a checkpoint at all")
    path.write_bytes(content)
    with pytest.raises(CitrusError, match="damaged"):
        train(config(), tmp_path, splits=splits(), resume=True)
    assert path.read_bytes() == bytes(content)


def test_a_checkpoint_of_another_network_is_told(tmp_path: Path) -> None:
    for name in ("mlp", "smallcnn"):
        with pytest.raises(Stopped):
            train(config(network=name), tmp_path / name, splits=splits(), stop_after=1)
    last = Path("checkpoints") / "last.safetensors"
    (tmp_path / "mlp" / last).write_bytes((tmp_path / "smallcnn" / last).read_bytes())
    with pytest.raises(CitrusError, match="does not belong to this configuration"):
        train(config(network="mlp"), tmp_path / "mlp", splits=splits(), resume=True)


def test_an_unwritable_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CitrusError, match="Cannot write"):
        train(config(), tmp_path / "file" / "run", splits=splits())


def test_too_few_images_and_unknown_devices_are_told(tmp_path: Path) -> None:
    with pytest.raises(CitrusError, match="batch_size 70 is larger than the 60 training images"):
        Trainer(config(batch_size=70), splits())
    with pytest.raises(CitrusError, match="Device 'gpu0' cannot be used"):
        train(config(), tmp_path, splits=splits(), device="gpu0")


def test_an_unfinished_run_has_no_network(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train(config(), tmp_path, splits=splits(), stop_after=1)
    with pytest.raises(CitrusError, match="has no finished network"):
        load_run(tmp_path)
