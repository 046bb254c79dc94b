"""The worker keeps to what other packages offer, and its errors are what Python itself would print."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import worker
from penstock.worker import failures
from penstock.worker.failures import ErrorTexts

FOLDER = Path(worker.__path__[0])
# Named tuples have no other names for these; os has none either.
ALLOWED = {"_asdict", "_exit", "_replace"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in ALLOWED


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_no_private_member_of_another_package_is_used(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    own = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_own(node.value)}
    found = [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own
    ]
    found += [
        f"{node.lineno}: {alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if is_private(alias.name)
    ]
    assert found == []


def _is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def _plain() -> None:
    raise ValueError("plain")


def _deep(depth: int = 30) -> None:
    if depth:
        _deep(depth - 1)
    raise ValueError("deep")


def _caused() -> None:
    try:
        _plain()
    except ValueError as exc:
        raise KeyError("caused") from exc


def _in_a_handler() -> None:
    try:
        _plain()
    except ValueError:
        raise KeyError("in a handler")  # noqa: B904


def _without_context() -> None:
    try:
        _plain()
    except ValueError:
        raise KeyError("without context") from None


def _noted() -> None:
    exc = ValueError("noted")
    exc.add_note("a note")
    raise exc


def _grouped() -> None:
    raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])


def _misspelt() -> None:
    compile("x = = 1", "<nowhere>", "exec")


RAISING = [_plain, _deep, _caused, _in_a_handler, _without_context, _noted, _grouped, _misspelt]


@pytest.mark.parametrize("raises", RAISING, ids=lambda function: function.__name__)
def test_an_error_has_the_traceback_that_python_prints(raises: Callable[[], None]) -> None:
    """The first time, and when its frames come from the cache."""
    texts = ErrorTexts()
    for _ in range(2):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
            raises()
        lines = "".join(traceback.format_exception(caught.value))
        assert texts.of(caught.value).split("\n", 1)[1] == lines


def test_a_place_that_fails_with_another_text_is_not_confused() -> None:
    errors, texts = ErrorTexts(), list[str]()
    for number in range(3):
        try:
            raise ValueError(f"number {number}")
        except ValueError as exc:
            texts.append(errors.of(exc))
    assert [f"number {number}" in text for number, text in enumerate(texts)] == [True] * 3
    assert len(set(texts)) == 3


def test_formatted_frames_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MOST_CACHED", 2)
    texts = ErrorTexts()
    for raises in RAISING:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            raises()
        texts.of(caught.value)
        assert len(texts._frames) <= 2
