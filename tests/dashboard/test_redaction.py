"""Redaction by key, at any depth, and numbers that stay as they are stored."""

import json
from typing import Any

import msgspec
import psycopg
import pytest

from penstock import Client, InvalidArgument
from penstock.dashboard import exact_json
from penstock.dashboard.redaction import REDACTED, Redaction
from tests.dashboard.conftest import Browser, Serve


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
        "\N{FULLWIDTH LATIN SMALL LETTER P}assword",
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
    with pytest.raises(InvalidArgument, match="regular expressions"):
        Redaction(["("])


def test_numbers_keep_their_text() -> None:
    text = '{"big":123456789012345678901234567890,"decimal":1.10,"small":1e-400,"list":[0.1,-0]}'
    assert Redaction().in_text(text) == text
    laid_out = exact_json.pretty_text(text, 1000)
    assert laid_out == msgspec.json.format(text, indent=2)


SECRET = {"user": {"password": "hush"}, "list": [{"token": ["hush", {"a": "hush"}]}], "n": 1}
JSON = json.dumps(SECRET)


@pytest.mark.parametrize(
    "text",
    [
        JSON,
        f"{JSON}\n{JSON}",
        f"{JSON} and more",
        f"received: {JSON}",
        f'a quote " too many {JSON}',
        f"[{JSON},{'[' * 1000}",
        json.dumps({"Message": JSON}),
        json.dumps({"Message": f"received {JSON}"}),
        json.dumps({"a": json.dumps({"b": json.dumps([JSON])})}),
        '{"pass\\u0077ord" :\n "hush"}',
        '["a", "b", {"x": "y", ":password": "hush"}]',
    ],
)
def test_in_text_of_any_kind(text: str) -> None:
    """Also where it is cut, wherever that is."""
    redaction = Redaction()
    shown = redaction.in_text(text)
    assert "hush" not in shown
    assert REDACTED in shown
    assert redaction.in_text(shown) == shown
    for length in range(max(0, len(text) - 100), len(text)):
        assert "hus" not in redaction.in_text(text[:length]), text[:length]


def test_what_is_not_secret_stays_as_it_is() -> None:
    for text in (
        '{"a":"\\"password\\" is a word","b":[1,2],"c":{}}',
        "plain",
        '"',
        '"\\',
        "{}",
        '{"tokens_used": 1}',
    ):
        assert Redaction().in_text(text) == text


@pytest.mark.parametrize("coding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"])
def test_in_bytes_of_any_coding(coding: str) -> None:
    shown = Redaction().in_bytes(JSON.encode(coding)).decode(coding)
    assert json.loads(shown) == Redaction().apply(SECRET)


def test_in_bytes_that_are_no_text() -> None:
    binary = bytes(range(256)) * 3
    assert Redaction().in_bytes(binary) == binary
    framed = b"\x00\x00\x00\x00\x07" + JSON.encode() + b"\xff"
    assert b"hush" not in Redaction().in_bytes(framed)


# On pages


def test_secrets_are_on_no_page(serve: Serve, queue: Client) -> None:
    queue.create_queue("q")
    ids = [
        queue.send("q", b"\xef\xbb\xbf" + JSON.encode()),
        queue.send("q", f"{JSON}\n{JSON}".encode()),
        queue.send("q", b'{"password":"hush","text":"' + b"x" * 3_000_000 + b'"}'),
        queue.send("q", b'[{"password":"hush"},' + b"[" * 20_000 + b"]" * 20_000 + b"]"),
        queue.send("q", {"Message": JSON}),
        queue.send("q", JSON.encode("utf-16")),
    ]
    with serve().client() as client:
        for message_id in ids:
            base = f"/queues/q/messages/{message_id}"
            for path in (base, f"{base}?show=raw", f"{base}?show=hex", f"/api/v1{base}", f"{base}/payload"):
                found = client.get(path)
                assert found.status_code == 200
                shown = found.content.replace(b"\x00", b"")
                assert b"hush" not in shown, path
                assert b"hush".hex(" ").encode() not in shown, path


def test_json_that_python_does_not_read(serve: Serve, queue: Client, sql18: psycopg.Connection[Any]) -> None:
    """PostgreSQL stores thousands of levels, and numbers of thousands of digits."""
    queue.create_queue("q")
    deep, large = f'"a": {"[" * 3000}{"]" * 3000}', f'"n": {"1" * 5000}'
    text = f'{{"password": "hush", {deep}, {large}}}'
    sent = sql18.execute("select penstock.send_message('q', %s, headers => %s)", (text, text)).fetchone()
    assert sent is not None
    sql18.execute(
        "select penstock.put_schedule('s', 'q', %s, null, 2, null, null, '{\"every\": 60}', 'one', now())",
        (text,),
    )
    sql18.execute("select penstock.record_action('done elsewhere', null, %s)", (text,))
    base = f"/queues/q/messages/{sent[0]}"
    with serve().client() as client:
        for path in (base, f"{base}?show=raw", f"{base}?show=hex", f"{base}/payload", "/schedules", "/audit"):
            for prefix in ("", "/api/v1"):
                found = client.get(prefix + path)
                assert found.status_code == 200, path
                assert "hush" not in found.text, path


def test_a_search_does_not_tell_a_secret(serve: Serve, queue: Client) -> None:
    """Else a viewer could guess until something is found."""
    queue.create_queue("q")
    queue.send("q", {"user": {"password": "hush"}, "plain": {"a": 1}})

    def quoted(value: object) -> str:
        return json.dumps(json.dumps(value))

    with serve().client() as client:
        for term in ("payload.user.password:hush", f"payload.user:{quoted({'password': 'hush'})}"):
            found = client.get("/api/v1/search", params={"q": term})
            assert (found.status_code, "redacted" in found.text) == (422, True), term
        found = client.get("/api/v1/search", params={"q": f"payload.plain:{quoted({'a': 1})}"})
        assert len(found.json()["result"]["matches"]) == 1


def test_the_audit_has_what_an_action_reads_only(serve: Serve, queue: Client) -> None:
    """A person cannot write a story of their own into it."""
    queue.create_queue("q")
    with serve().client() as client:
        Browser(client).post("/api/v1/queues/q/pause", {"who": "bob", "before": "x", "password": "hush"})
    assert queue.list_actions()[0].details == {}
