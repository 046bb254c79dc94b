"""docs/reference/cli.md has every command and every option, and docs/how-to name none that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from penstock.cli import COMMANDS, main

from .pages import ROOT, all_pages, blocks, name_of

PAGE = ROOT / "docs" / "reference" / "cli.md"
# In tables of their own, at the top.
COMMON = {"--dsn", "--json", "--yes", "--help"}


def commands(ctx: click.Context) -> Iterator[click.Context]:
    """Every command and subcommand below this one."""
    command = ctx.command
    assert isinstance(command, click.Group)
    for name in command.list_commands(ctx):
        found = command.get_command(ctx, name)
        assert found is not None
        below = click.Context(found, info_name=name, parent=ctx)
        yield below
        if isinstance(found, click.Group):
            yield from commands(below)


@pytest.fixture(scope="module")
def everything() -> dict[str, click.Command]:
    """Every command, by its path."""
    # With its settings: click keeps the first help option that it has made for a command.
    root = click.Context(main, info_name="penstock", **main.context_settings)
    return {each.command_path: each.command for each in commands(root)}


def test_the_page_has_every_command_and_option(everything: dict[str, click.Command]) -> None:
    text = PAGE.read_text("utf-8")
    sections = dict(re.findall(r"^#{2,3} (penstock [^\n]+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    assert sorted(sections) == sorted(everything)
    for path, command in everything.items():
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert all(name in sections[path] for name in option.opts if name not in COMMON | {"-y"}), (
                    path
                )


def test_the_contents_lead_to_every_command(everything: dict[str, click.Command]) -> None:
    contents, _, _ = PAGE.read_text("utf-8").partition("## Conventions")
    for path in everything:
        assert f"](#{path.replace(' ', '-')})" in contents, path
    assert all(f"**{entry.heading}**" in contents for entry in COMMANDS.values())


def test_a_command_that_a_page_names_is_there(everything: dict[str, click.Command]) -> None:
    unknown = [
        f"{name_of(page)}: {found[0]}"
        for page in all_pages()
        for text in [page.read_text("utf-8"), *(block.text for block in blocks(page))]
        for found in re.finditer(r"(?:^|`)penstock ([a-z]+)(?: ([a-z-]+))?", text, re.MULTILINE)
        if not _is_there(everything, found[1], found[2])
    ]
    assert unknown == []


def _is_there(everything: dict[str, click.Command], name: str, part: str | None) -> bool:
    command = everything.get(f"penstock {name}")
    if isinstance(command, click.Group) and part:
        return f"penstock {name} {part}" in everything
    return command is not None
