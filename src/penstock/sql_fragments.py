"""Expands the marks in the SQL files: text that stands in many places is written once, in sql/fragments."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["carried_columns", "expand", "load_fragments"]

_MARK = re.compile(r"/\*([a-z_]+)(?: ([a-z_]+))?(?:: ([^*]+))?\*/")
_SETTING = re.compile(r"set enable_(\w+) = off ?")


def load_fragments(folder: Path) -> dict[str, str]:
    """Read the fragments of a folder, by name, without the comments at their head."""
    return {path.stem: _body(path.read_text("utf-8")) for path in sorted(folder.glob("*.sql"))}


def carried_columns(fragments: dict[str, str]) -> list[str]:
    """Return the names of the columns that a message carries through its states."""
    return re.findall(r"\w+", fragments["carried"])


def expand(text: str, fragments: dict[str, str]) -> str:
    """Replace each mark, such as /*carried m*/, by its fragment."""

    def replacement(mark: re.Match[str]) -> str:
        name, alias, options = mark.groups()
        if name not in fragments:
            raise ValueError(f"{mark[0]} names no fragment; there are {', '.join(sorted(fragments))}")
        if name == "carried":
            return _columns(carried_columns(fragments), alias, options)
        if fragments[name].startswith("set "):
            return _settings(fragments[name], options)
        return _indented(expand(fragments[name], fragments), mark)

    return _MARK.sub(replacement, text)


def _body(text: str) -> str:
    lines = text.strip().splitlines()
    return "\n".join(line for line in lines if not line.startswith("--"))


def _columns(names: list[str], alias: str | None, options: str | None) -> str:
    values = {name: f"{alias}.{name}" if alias else name for name in names}
    for option in options.split(";") if options else ():
        name, _, value = (part.strip() for part in option.partition("="))
        if name not in values or not value:
            raise ValueError(f"no carried column and its value: {option.strip()!r}")
        values[name] = f"{value} as {name}"
    return ", ".join(values.values())


def _settings(text: str, allowed: str | None) -> str:
    """The settings without those that forbid the allowed plan nodes."""
    names = set(re.findall(r"\w+", allowed or ""))
    if unknown := names - set(_SETTING.findall(text)):
        raise ValueError(f"no plan nodes that the fragment forbids: {', '.join(sorted(unknown))}")
    return _SETTING.sub(lambda setting: "" if setting[1] in names else setting[0], text).rstrip()


def _indented(text: str, mark: re.Match[str]) -> str:
    start = mark.string.rfind("\n", 0, mark.start()) + 1
    before = mark.string[start : mark.start()]
    indent = before[: len(before) - len(before.lstrip())]
    return text.replace("\n", f"\n{indent}")
