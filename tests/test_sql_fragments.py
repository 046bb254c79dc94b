"""The marks of the SQL files, and what the installer makes of them."""

from __future__ import annotations

import re

import pytest

from penstock import schema
from penstock.sql_fragments import carried_columns, expand, load_fragments

FRAGMENTS = {
    "carried": "id, tenant,\nerrors",
    "hot": "set search_path = x\nset enable_sort = off set enable_hashjoin = off\nset jit = off",
    "outer": "a as (\n    select /*carried m*/\n)",
}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("(/*carried*/)", "(id, tenant, errors)"),
        ("/*carried g*/", "g.id, g.tenant, g.errors"),
        (
            "/*carried g: tenant = upper(g.tenant); errors = f(g.errors, 1)*/",
            "g.id, upper(g.tenant) as tenant, f(g.errors, 1) as errors",
        ),
        ("/*hot*/", FRAGMENTS["hot"]),
        ("/*hot: sort*/", "set search_path = x\nset enable_hashjoin = off\nset jit = off"),
        ("  with /*outer*/", "  with a as (\n      select m.id, m.tenant, m.errors\n  )"),
        ("select 1 /* 2 */", "select 1 /* 2 */"),
    ],
)
def test_a_mark_is_replaced_by_its_fragment(text: str, expanded: str) -> None:
    assert expand(text, FRAGMENTS) == expanded


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("/*carry*/", r"/\*carry\*/ names no fragment; there are carried, hot, outer"),
        ("/*carried m: colour = 1*/", "no carried column and its value: 'colour = 1'"),
        ("/*carried m: tenant*/", "no carried column and its value: 'tenant'"),
        ("/*hot: nestloop*/", "no plan nodes that the fragment forbids: nestloop"),
    ],
)
def test_a_wrong_mark_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        expand(text, FRAGMENTS)


def test_the_script_has_no_marks_left() -> None:
    names = "|".join(load_fragments(schema.SQL / "fragments"))
    assert re.findall(rf"/\*(?:{names})\b", schema.script()) == []


def test_no_file_lists_the_carried_columns_again() -> None:
    """But the fragment that names their values for a new message."""
    fragments = load_fragments(schema.SQL / "fragments")
    listed = re.compile(r"\blifetime, [\w.]*tenant, [\w.]*dedup_key\b")
    assert "lifetime" in carried_columns(fragments)
    files = (schema.SQL / "functions").glob("*.sql")
    assert [file.name for file in files if listed.search(file.read_text("utf-8"))] == []
