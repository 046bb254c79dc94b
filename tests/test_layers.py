"""Private members of one package are not used by another: what others need has a method or property."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

SOURCE = Path(penstock.__file__).parent

# Of the standard library, which has no public name for these.
STANDARD = {"os._exit", "atexit._run_exitfuncs"}
# Methods of named tuples.
NAMED_TUPLE = {"_asdict", "_replace", "_fields", "_make"}
# The clients are written in _async, and generated in _sync.
CLIENTS = {"_async", "_sync"}
# How variables are called that hold an object of the clients.
OF_THE_CLIENTS = {"client", "async_client", "claims", "message", "transaction", "consumer"}


def packages() -> dict[str, list[Path]]:
    """The files of each package; a module beside the packages is one of its own."""
    found: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        found.setdefault(first, []).append(path)
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined_in(tree: ast.Module) -> Iterator[str]:
    """The private names that a module defines: functions, fields, attributes of self, slots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def is_own(receiver: ast.expr) -> bool:
    """Whether it is self, cls or super()."""
    if isinstance(receiver, ast.Call):
        receiver = receiver.func
    return isinstance(receiver, ast.Name) and receiver.id in {"self", "cls", "super"}


def last_name(receiver: ast.expr) -> str:
    name = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
    return str(name).lstrip("_")


def foreign_uses(package: str, tree: ast.Module, own: set[str]) -> Iterator[tuple[int, str]]:
    """Private members of another package that a module uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            module = (node.module or "").split(".")
            is_other = module[0] == "penstock" and module[1:2] != [package]
            for alias in node.names if is_other else []:
                if is_private(alias.name) and alias.name not in CLIENTS:
                    yield node.lineno, f"from {node.module} import {alias.name}"
        if not isinstance(node, ast.Attribute) or not is_private(node.attr) or is_own(node.value):
            continue
        text = ast.unparse(node)
        of_the_clients = last_name(node.value) in OF_THE_CLIENTS and package not in CLIENTS
        if text not in STANDARD and node.attr not in NAMED_TUPLE and (of_the_clients or node.attr not in own):
            yield node.lineno, text


@pytest.mark.parametrize("package", packages())
def test_no_private_members_of_other_packages(package: str) -> None:
    files = {path: ast.parse(path.read_text("utf-8")) for path in packages()[package]}
    own = {name for tree in files.values() for name in defined_in(tree) if is_private(name)}
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {text}"
        for path, tree in files.items()
        for line, text in foreign_uses(package, tree, own)
    ]
    assert found == [], "give the class that owns it a method, or `internals` one, and use that"


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("client._run(1)", True),
        ("self._client._attempt(1)", True),
        ("from penstock.tasks.context import _current", True),
        ("from penstock.testing.clock import _mine", False),
        ("thing._elsewhere", True),
        ("thing._here", False),
        ("self._elsewhere", False),
        ("super()._elsewhere()", False),
        ("os._exit(1)", False),
        ("row._asdict()", False),
    ],
)
def test_the_search_finds_what_it_should(text: str, is_found: bool) -> None:
    found = list(foreign_uses("testing", ast.parse(text), {"_here", "_run"}))
    assert bool(found) is is_found
