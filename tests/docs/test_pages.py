"""Every snippet of README.md and docs/ runs, and prints what the page says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from .pages import ROOT, Block, all_pages, blocks, links, name_of
from .reader import NOT_RUN, Reader, commands, matches

SESSION = """
import os
from types import SimpleNamespace
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
session = Session(create_engine(os.environ["DATABASE_URL"]))
order = SimpleNamespace(id=17)
"""

# What a page takes for granted.
BEFORE = {
    "README.md": [
        Block("sql", "", "create table orders (id integer, total integer)", 1),
        Block("python", "", SESSION, 1),
    ]
}

# A program that a page uses and that is not ours: without it the page is not read.
NEEDED = {"docs/how-to/operate.md": "jq"}

# Its blocks are signatures; tools/sqldoc.py --check compares them with the catalog.
SIGNATURES = "docs/reference/sql.md"


@pytest.mark.parametrize("page", all_pages(), ids=name_of)
def test_what_a_page_says_happens(page: Path, tmp_path: Path, database18: str) -> None:
    if name_of(page) == SIGNATURES:
        assert {block.language for block in blocks(page)} == {"sql"}
        return
    if (needed := NEEDED.get(name_of(page))) and shutil.which(needed) is None:
        pytest.skip(f"{needed} is not installed")
    with Reader(page, tmp_path, database18, before=BEFORE.get(name_of(page), ())) as reader:
        assert reader.read() == len(list(blocks(page)))


def test_what_is_not_run_is_written_somewhere() -> None:
    written = {line for page in all_pages() for block in blocks(page) for line in commands(block.text)}
    assert set(NOT_RUN) <= written
    assert {*BEFORE, *NEEDED} <= {name_of(page) for page in all_pages()}


def test_every_link_leads_somewhere() -> None:
    broken = [
        f"{name_of(page)}: {target.name}#{anchor}"
        for page in all_pages()
        for target, anchor in links(page)
        if not target.exists() or (anchor and anchor not in anchors(target))
    ]
    assert broken == []


def test_the_index_knows_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {target.resolve() for target, _ in links(index)}
    assert {page.resolve() for page in all_pages()} - linked == {
        index.resolve(),
        (ROOT / "README.md").resolve(),
    }


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as they are on the web: a second one of a name has a number."""
    found = set[str]()
    for title in re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE):
        anchor = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        while anchor in found:
            base, _, number = anchor.rpartition("-")
            anchor = f"{base}-{int(number) + 1}" if base and number.isdigit() else f"{anchor}-1"
        found.add(anchor)
    return found


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\nprint(1)\n```\n```text\n2\n```\n", "page.md:5: it should print\n2\n\nit prints\n1\n"),
        ("```python\nprint(1)\n```\n", "page.md:2: no `text` block shows"),
        ("```python\n1 / 0\n```\n", "page.md:2: it does not run:\nTraceback"),
        ("```python\nimport os\nos._exit(0)\n```\n", "page.md:2: it does not run"),
        ("```python\n# a.py\n1 / 0\n```\n```sh\npython a.py\n```\n", "page.md:6: exit code 1"),
        ("```ruby\nputs 1\n```\n", "page.md:2: no runner for a block of ruby"),
        ("```\nwhat is this\n```\n", "page.md:2: no runner for a block of no language"),
        ("```text second-terminal\n1\n```\n", "page.md:2: nothing runs in the second terminal"),
        ("```text third-terminal\n1\n```\n", "page.md:2: nothing runs in the third terminal"),
        ("```ini\n[Service]\n```\n```text\n1\n```\n", "it should print\n1\n"),
        ("```sh second-terminal\necho 1\n```\n```text second-terminal\n2\n```\n", "it prints\n1\n"),
        ("```python\nopen\n", "page.md:2: the block is not closed"),
    ],
)
def test_a_page_that_is_wrong_is_noticed(text: str, complaint: str, tmp_path: Path, database18: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, "utf-8")
    with (
        Reader(page, tmp_path, database18) as reader,
        pytest.raises(AssertionError, match=re.escape(complaint)),
    ):
        reader.read()


def test_three_dots_stand_for_anything() -> None:
    assert matches("sent ...\n", "sent 17\n")
    assert matches("a\n...\nd\n", "a\nb\nc\nd")
    assert not matches("sent ...!\n", "sent 17\n")
    assert not matches("", "sent 17\n")


def test_one_time_of_a_log_is_as_good_as_another() -> None:
    assert matches("2026-11-16 08:21:30,045 INFO a", "2031-01-02 03:04:05,678 INFO a\n")
    assert not matches("2026-11-16 08:21:30,045 INFO a", "2026-11-16 08:21:30,045 INFO b")


def test_a_page_can_import_its_own_files(tmp_path: Path, database18: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\n# own.py\nvalue = 7\n```\n```python\nimport own\nprint(own.value)\n```\n"
        "```text\n7\n```\n",
        "utf-8",
    )
    with Reader(page, tmp_path, database18) as reader:
        assert reader.read() == 3


def test_a_second_terminal_runs_beside_the_first(tmp_path: Path, database18: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh second-terminal\ntail -F seen\n```\n```sh\necho hello >> seen\n```\n"
        "```text second-terminal\n...hello\n```\n",
        "utf-8",
    )
    with Reader(page, tmp_path, database18) as reader:
        assert reader.read() == 3
