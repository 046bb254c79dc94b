"""The exception tree: one class for each SQLSTATE, messages and hints kept."""

from __future__ import annotations

import inspect
import pickle
import re

import psycopg
import pytest

from penstock import errors, schema
from penstock.errors import InvalidArgument, PenstockError, QueueNotFound, SchemaMissing, from_database

STATES = {
    "PN001": errors.QueueNotFound,
    "PN002": errors.TopicNotFound,
    "PN003": errors.QueueDiffers,
    "PN004": errors.InvalidArgument,
    "PN005": errors.PayloadTooLarge,
    "PN006": errors.WrongIsolation,
    "PN007": errors.SchemaTooNew,
    "PN008": errors.PermissionDenied,
    "PN009": errors.SchemaUnsafe,
}

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, PenstockError)]


def test_each_sqlstate_has_its_class() -> None:
    assert errors.by_sqlstate() == STATES
    assert list(errors.by_sqlstate()) == sorted(STATES)


def test_the_schema_raises_no_other_sqlstate_of_ours() -> None:
    assert set(re.findall(r"PN[0-9A-Z]{3}", schema.script())) <= set(STATES)


@pytest.mark.parametrize("cls", CLASSES)
def test_the_docstring_is_the_message(cls: type[PenstockError]) -> None:
    assert str(cls()) == inspect.getdoc(cls)
    assert str(cls("another")) == "another"


@pytest.mark.parametrize("cls", CLASSES)
def test_the_tree_is_drawn_whole(cls: type[PenstockError]) -> None:
    drawn = [line.split() for line in (errors.__doc__ or "").splitlines() if cls.__name__ in line.split()]
    assert len(drawn) == 1
    assert (drawn[0][-1] if cls.sqlstate else None) == cls.sqlstate


def test_public_names() -> None:
    assert sorted(errors.__all__) == errors.__all__
    assert {cls.__name__ for cls in CLASSES} | {"by_sqlstate", "from_database", "sqlstate_of"} == set(
        errors.__all__
    )


def test_a_hint_is_kept_and_shown() -> None:
    error = SchemaMissing("none here", hint="make one")
    assert (str(error), error.hint, error.__notes__) == ("none here", "make one", ["Hint: make one"])
    assert PenstockError("none").hint is None


def test_it_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(InvalidArgument("no", hint="yes")))  # noqa: S301 - our own
    assert isinstance(copy, InvalidArgument)
    assert (str(copy), copy.hint, copy.sqlstate) == ("no", "yes", "PN004")


def test_an_error_of_the_database_is_mapped_by_its_code(sql18: psycopg.Connection[object]) -> None:
    for state, cls in STATES.items():
        with pytest.raises(psycopg.Error) as caught:
            sql18.execute(f"do $$ begin raise 'what' using errcode = '{state}', hint = 'how'; end $$")
        error = from_database(caught.value)
        assert type(error) is cls
        assert (str(error), error.hint, error.sqlstate) == ("what", "how", state)


def test_another_error_is_not_ours(sql18: psycopg.Connection[object]) -> None:
    with pytest.raises(psycopg.Error) as caught:
        sql18.execute("do $$ begin raise exception 'PN001'; end $$")
    assert from_database(caught.value) is None
    assert from_database(psycopg.OperationalError("PN001")) is None


def test_a_group_catches_its_members() -> None:
    with pytest.raises(errors.NotFound):
        raise QueueNotFound
