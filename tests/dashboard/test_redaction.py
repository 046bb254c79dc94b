"""Redaction by key, at any depth, and numbers that stay as they are stored."""

import pytest

from penstock.dashboard import exact_json
from penstock.dashboard.redaction import REDACTED, Redaction


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "Password",
        "userPassword",
        "api_key",
        "apiKey",
        "API-Key",
        "token",
        "access_token",
        "X-Auth-Token",
    ],
)
def test_secret_keys_are_hidden(key: str) -> None:
    assert Redaction().apply({key: "hush"}) == {key: REDACTED}


@pytest.mark.parametrize("key", ["name", "tokens_used", "pinned", "monkey", "passenger"])
def test_other_keys_are_shown(key: str) -> None:
    assert Redaction().apply({key: 1}) == {key: 1}


def test_any_depth() -> None:
    value: object = {"password": "hush"}
    for _ in range(5000):
        value = [{"a": value}]
    found = Redaction().apply(value)
    for _ in range(5000):
        found = found[0]["a"]
    assert found == {"password": REDACTED}


def test_the_value_itself_is_not_changed() -> None:
    value = {"a": [{"secret": {"deep": 1}}]}
    assert Redaction().apply(value) == {"a": [{"secret": REDACTED}]}
    assert value == {"a": [{"secret": {"deep": 1}}]}


def test_own_patterns_and_none() -> None:
    assert Redaction(["^iban$"]).apply({"IBAN": 1, "password": 2}) == {"IBAN": REDACTED, "password": 2}
    assert Redaction([]).apply({"password": 1}) == {"password": 1}


def test_numbers_keep_their_text() -> None:
    text = '{"big":123456789012345678901234567890,"decimal":1.10,"small":1e-400,"list":[0.1,-0]}'
    assert exact_json.dump(exact_json.load(text)).decode() == text
    assert "1.10" in exact_json.pretty(Redaction().apply(exact_json.load(text)))
