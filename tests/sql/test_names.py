"""Names, tokens, tenants and errors are data: whatever characters they have, they mean themselves."""

from __future__ import annotations

import pytest

from .conftest import Clock
from .engine import Engine, fingerprint

HOSTILE = {
    "single quote": "O'Reilly's",
    "double quote": 'say "hi"',
    "injection": "x'); drop schema penstock cascade; --",
    "dollar quotes": "$$ $q$ $1 ${x}",
    "percent": "100% %s %I %L %",
    "backslash": "a\\b\\n\\",
    "newline": "two\nlines\r\n",
    "control": "tab\tbell\x07escape\x1b",
    "spaces": "  around  ",
    "one space": " ",
    "braces": '{a,b} {"a": null}',
    "null": "null",
    "wildcards": "a_b%c*?",
    "colon": "queue:x:y",
    "unicode": "Größe 東京 עברית",
    "emoji": "👩‍👩‍👧‍👦 🚰",
    "combining": "e\u0301 \u202e \ufeff \u200b",
    "longest": "x" * 255,
    "longest emoji": "😀" * 255,
    "longest quotes": "'" * 255,
}
hostile = pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)


@hostile
def test_a_message_lives_its_life_in_a_queue_of_that_name(
    engine18: Engine, clock18: Clock, name: str
) -> None:
    engine, clock = engine18, clock18
    engine.topic("plain", "bystander")
    engine.publish("plain", "untouched")
    untouched = engine.belongings()
    engine.topic(name, name, retry_delays=[5])
    message_id = engine.publish(name, "via topic")
    assert engine.rows("list_topics")[-1 if name > "plain" else 0].queue_count == 1
    assert engine.settings(name).topic_name == name
    message = engine.take(name)
    assert (message.queue_name, message.message_id, message.payload) == (name, message_id, "via topic")
    assert engine.value("extend_message_vt", name, message_id, message.consumer_token, 5) > message.vt
    assert engine.nack(message, error="once")
    clock.advance(6)
    assert engine.maintain()["promoted"] == 1
    assert engine.release(engine.take(name))
    assert engine.reject(engine.take(name), error="twice")
    assert [row.queue_name for row in engine.rows("list_dlq_messages", name)] == [name]
    assert engine.value("requeue_dlq_messages", name) == 1
    engine.value("pause_queue", name)
    assert engine.nothing_to_take(name)
    engine.value("resume_queue", name)
    engine.value("alter_queue", name, max_delivery_attempts=7)
    assert engine.ack(engine.take(name))
    assert engine.state(name, message_id) == "done"
    assert engine.explain(name, message_id).startswith("done")
    assert engine.statistics(name).completed_count == 1
    assert engine.value("cancel_message", name, engine.send(name))
    assert engine.value("cleanup_topic_messages", name) == 1
    engine.value("delete_queue", name)
    engine.value("delete_topic", name)
    assert engine.belongings() == untouched


@hostile
@pytest.mark.parametrize(
    ("function", "arguments", "sqlstate"),
    [("publish_message", ["1"], "PN002"), ("consume_message", [], "PN001")],
)
def test_an_unknown_name_is_repeated_to_the_letter(
    house: Engine, name: str, function: str, arguments: list[str], sqlstate: str
) -> None:
    with house.refused(sqlstate, f'"{name}"'):
        house.rows(function, name, *arguments)


@hostile
def test_what_a_message_carries_comes_back_to_the_letter(engine: Engine, name: str) -> None:
    engine.queue("q")
    engine.send("q", {name: name}, headers={name: [name]}, tenant=name, dedup_key=name)
    message = engine.take("q", name)
    assert message.payload == {name: name}
    assert message.headers == {name: [name]}
    assert message.tenant == message.consumer_token == name
    assert engine.message("q", message.message_id).dedup_key == name
    assert engine.value("pulse", name, 30) == 1
    assert fingerprint(name) in engine.explain("q", message.message_id)
    assert engine.reject(message, error=name)
    (letter,) = engine.rows("list_dlq_messages", "q")
    assert letter.last_error == letter.errors[-1]["error"] == name


@pytest.mark.parametrize("option", ["tenant", "dedup_key"])
@pytest.mark.parametrize("when", ["now", "later"])
def test_a_text_too_long_for_an_index_is_refused_or_works(
    engine: Engine, clock: Clock, option: str, when: str
) -> None:
    # Not to be compressed: a btree takes some 2,700 bytes of a value.
    long = "".join(chr(0x4E00 + 7919 * i % 20000) for i in range(20000))
    engine.queue("q")
    due = engine.now().replace(year=engine.now().year + 1) if when == "later" else None
    try:
        engine.send("q", deliver_after=due, **{option: long})
    except Exception as exc:
        assert getattr(exc, "sqlstate", None) == "PN004", exc  # noqa: PT017 - either way is right
    clock.advance(2 * 366 * 86400)
    engine.maintain()
    engine.send("q", "another")
    assert "another" in [message.payload for message in engine.take_many("q", 10)]
