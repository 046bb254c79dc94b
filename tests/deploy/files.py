"""The files of deploy/, read as the programs read them that they are for."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

__all__ = [
    "DEPLOY",
    "ROOT",
    "Compose",
    "Unit",
    "alerts",
    "exprs_of",
    "instructions",
    "read_dashboard",
    "read_yaml",
    "seconds",
]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

VARIABLE = re.compile(r"\$\{(\w+)(?:(:[?-])([^}]*))?\}")


def read_yaml(path: str) -> Any:
    return yaml.safe_load((DEPLOY / path).read_text("utf-8"))


# Prometheus and Grafana


def alerts() -> list[dict[str, Any]]:
    """The rules of all groups."""
    return [rule for group in read_yaml("prometheus/alerts.yml")["groups"] for rule in group["rules"]]


def read_dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana" / "penstock.json").read_text("utf-8"))
    return found


def exprs_of(dashboard: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Each expression of a dashboard: the title of its panel, the expression, and the legend."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]
    for annotation in dashboard["annotations"]["list"]:
        if "expr" in annotation:
            yield annotation["name"], annotation["expr"], annotation["titleFormat"]


# systemd


class Unit:
    """A unit file. values: all of a key in a section, in order; an empty one takes those before it away."""

    def __init__(self, path: Path, instance: str = "") -> None:
        self.name = path.name
        self.text = path.read_text("utf-8")
        self._values: dict[tuple[str, str], list[str]] = {}
        section = ""
        for line in self.text.splitlines():
            if line.startswith("["):
                section = line.strip("[]")
            elif line and not line.startswith(("#", ";")):
                key, _, value = line.partition("=")
                self._values.setdefault((section, key), []).append(value.replace("%i", instance))

    def values(self, section: str, key: str) -> list[str]:
        return self._values.get((section, key), [])

    def value(self, key: str, section: str = "Service") -> str:
        (found,) = self.values(section, key)
        return found

    def environment(self) -> dict[str, str]:
        pairs = (each.partition("=") for each in self.values("Service", "Environment"))
        return {name: value for name, _, value in pairs}

    def command(self, environ: Mapping[str, str]) -> list[str]:
        """ExecStart with its variables: ${X} is a word or a part of one, $X as many words as it has."""
        words = list[str]()
        for word in shlex.split(self.value("ExecStart")):
            if re.fullmatch(r"\$\w+", word):
                words += shlex.split(environ[word[1:]])
            else:
                words.append(re.sub(r"\$\{(\w+)\}", lambda found: environ[found[1]], word))
        return words


def seconds(value: str) -> float:
    """A time of a unit or of compose.yml; "infinity" is one."""
    found = re.fullmatch(r"(\d+)(s|m|)", value)
    return float(value) if found is None else int(found[1]) * (60 if found[2] == "m" else 1)


# Docker


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of a Dockerfile. stage: the number of its FROM, from 0; -1 before the first one."""

    name: str
    value: str
    stage: int

    @property
    def words(self) -> list[str]:
        """The value in exec form."""
        found = json.loads(self.value[self.value.index("[") :])
        assert isinstance(found, list)
        return [str(word) for word in found]


def instructions(path: Path) -> list[Instruction]:
    text = "\n".join(line for line in path.read_text("utf-8").splitlines() if not line.startswith("#"))
    found = list[Instruction]()
    stage = -1
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.strip():
            name, _, value = line.partition(" ")
            stage += name == "FROM"
            found.append(Instruction(name, value.strip(), stage))
    return found


class Compose:
    """compose.yml with its variables replaced, as `docker compose` does it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.services: dict[str, dict[str, Any]] = self._filled(read_yaml("compose.yml"))["services"]

    def _filled(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._filled(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._filled(each) for each in value]
        return VARIABLE.sub(self._value, value) if isinstance(value, str) else value

    def _value(self, found: re.Match[str]) -> str:
        name, kind, rest = found.groups()
        if value := self._environ.get(name):
            return value
        if kind == ":?":
            raise LookupError(f"required variable {name} is missing a value: {rest}")
        return rest or ""
