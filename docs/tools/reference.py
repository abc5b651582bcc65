"""The reference pages, made from signatures and docstrings: what the code says about itself, and nothing else."""

import ast
import enum
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import citrus
import citrus.commands
from citrus.cli import COMMANDS
from citrus.methods import METHODS


def api_page() -> str:
    parts = ["# API reference", "All names of `import citrus`, from the docstrings of the code."]
    places: dict[str, list[str]] = {}
    for name in sorted(set(citrus.__all__) - {"__version__"}):
        module = ".".join(getattr(citrus, name).__module__.split(".")[:2])
        places.setdefault(module, []).append(name)
    for module, names in places.items():
        about = importlib.import_module(module).__doc__ or ""
        parts += [f"## {module}", prose(inspect.cleandoc(about).splitlines()[0])]
        for name in names:
            parts += [f"### citrus.{name}", *_object(name, getattr(citrus, name))]
    return "\n\n".join(parts)


def methods_page() -> str:
    parts = ["# Methods and their hyper-parameters", "`--method.FIELD VALUE` changes a field of a recipe."]
    for name, method in METHODS.items():
        about = inspect.getdoc(inspect.getmodule(method)) or ""
        parts += [f"## {name}", prose(about), f"Class `{method.__name__}`: {prose(inspect.getdoc(method) or '')}"]
        parts.append(_fields(method))
    return "\n\n".join(parts)


def commands_page() -> str:
    parts = ["# Commands and their flags", "`citrus COMMAND --help` says the same; `--debug` shows a whole traceback."]
    files = [file.name for file in pkgutil.iter_modules(citrus.commands.__path__)]
    for name, text in COMMANDS.items():
        parts += [f"## citrus {name}", f"{text[0].upper()}{text[1:]}."]
        for file in (file for file in files if file.split("_")[0] == name):
            module = importlib.import_module(f"citrus.commands.{file}")
            for kind in vars(module).values():
                if inspect.isclass(kind) and is_dataclass(kind) and kind.__module__ == module.__name__:
                    parts += [prose(inspect.getdoc(kind) or ""), _fields(kind, flags=True)]
    return "\n\n".join(parts)


def prose(text: str) -> str:
    """A docstring as Markdown: indented lines are code, and signs that Markdown would read stay signs."""
    lines: list[str] = []
    for line in inspect.cleandoc(text).splitlines():
        code = line.startswith("    ")
        if lines and lines[-1].strip() and code != lines[-1].startswith("    "):
            lines.append("")
        lines.append(line if code else "`".join(_plain(part, k % 2 == 0) for k, part in enumerate(line.split("`"))))
    return "\n".join(lines)


def _plain(text: str, outside: bool) -> str:
    return re.sub(r"[\\*_<\[]", lambda sign: f"&#{ord(sign[0])};", text) if outside else text


def _object(name: str, thing: Any) -> Iterator[str]:
    if inspect.isfunction(thing):
        yield from (_signature(name, thing), prose(thing.__doc__ or ""))
        return
    bases = ", ".join(base.__name__ for base in thing.__bases__ if base is not object)
    yield f"```python\nclass {name}{f'({bases})' if bases else ''}\n```"
    if "__init__" in vars(thing) and not is_dataclass(thing):
        yield _signature(name, thing.__init__)
    yield from (prose(inspect.getdoc(thing) or ""), _fields(thing))
    for attribute, value in vars(thing).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if inspect.isfunction(function) and not attribute.startswith("_") and function.__doc__:
            shown = f"```python\n{attribute}\n```" if isinstance(value, property) else _signature(attribute, function)
            yield from (shown, prose(function.__doc__))


def _signature(name: str, function: Any) -> str:
    lines = textwrap.dedent(inspect.getsource(inspect.unwrap(function))).splitlines()
    node: Any = ast.parse("\n".join(lines)).body[0]
    head = [line.split("  #")[0] for line in lines[node.lineno - 1 : node.body[0].lineno - 1]]
    text = "\n".join(head).removeprefix(f"def {function.__name__}").rstrip(":")
    return f"```python\n{name}{text}\n```"


def _fields(kind: type, flags: bool = False) -> str:
    """Fields (or flags, or members of an enumeration) with type, default and the docstring below each."""
    found: dict[str, tuple[str, str]] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("citrus."):
            found |= dict(_written(base, flags))
    return "\n".join(f"- `{line}`" + (f"<br>{prose(about)}" if about else "") for line, about in found.values())


def _written(kind: type, flags: bool) -> Iterator[tuple[str, tuple[str, str]]]:
    node: Any = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    for entry, following in zip(node.body, [*node.body[1:], None], strict=True):
        target = entry.target if isinstance(entry, ast.AnnAssign) else None
        if isinstance(entry, ast.Assign) and issubclass(kind, enum.Enum):
            target = entry.targets[0]
        if not isinstance(target, ast.Name) or "ClassVar" in ast.unparse(entry):
            continue
        about = following.value if isinstance(following, ast.Expr) else None
        text = str(about.value) if isinstance(about, ast.Constant) else ""
        yield target.id, (_flag(entry) if flags else ast.unparse(entry), inspect.cleandoc(text).replace("\n", " "))


def _flag(entry: Any) -> str:
    """`group_size: int = 5` as `--group-size 5`; a default that says nothing is left out."""
    default = ast.unparse(entry.value).strip("'")
    return f"--{entry.target.id.replace('_', '-')}{'' if default in ('None', 'False', '') else f' {default}'}"
