"""`penstock dlq`."""

from __future__ import annotations

import base64
import signal
import time
from typing import Any

import psycopg

import penstock
from tests.embedded.processes import eventually

from .command import Command
from .inside import Inside


def bury(
    queue: penstock.Client, name: str, payloads: list[Any], error: str | None = "no", **options: Any
) -> list[int]:
    """Dead letters that were rejected: their ids."""
    queue.create_queue(name)
    ids = queue.send_many(name, payloads, **options)
    for message in queue.consume_batch(name, batch_size=len(ids)):
        queue.reject(message, error)
    return ids


def exhaust(queue: penstock.Client, name: str, payloads: list[Any], **options: Any) -> list[int]:
    """Dead letters that had no attempts left: their ids."""
    queue.create_queue(name, max_delivery_attempts=1)
    ids = queue.send_many(name, payloads, **options)
    for message in queue.consume_batch(name, batch_size=len(ids)):
        queue.nack(message, error="once is enough")
    return ids


def bury_many(connection: psycopg.Connection[Any], name: str, number: int) -> None:
    """So many dead letters, without a call for each."""
    connection.execute("select penstock.create_queue(%s)", [name])
    connection.execute("select penstock.send_messages(%s, array_fill('1'::jsonb, array[%s]))", [name, number])
    for _ in range(number // 1000):
        connection.execute(
            "select penstock.reject_message(%s, message_id, 't')"
            " from penstock.consume_messages_batch(%s, 't', 600, 1000)",
            [name, name],
        )


def dead_in(queue: penstock.Client, name: str) -> list[int]:
    return [each.message_id for each in queue.list_dlq_messages(name)]


def test_list_newest_first(command: Command, queue: penstock.Client) -> None:
    nothing = command("dlq", "list").ok()
    assert (nothing.out, nothing.err) == ("", "There are no dead letters.\n")
    assert command("dlq", "list", "--json").ok().json == []
    (old,) = bury(queue, "mail", [b"\x00"], "first line\nsecond \x1b[31m", tenant="acme")
    (young,) = exhaust(queue, "billing", [{"n": 1}])
    listed = command("dlq", "list").ok()
    assert listed.err == ""
    heading, first, second = listed.out.splitlines()
    assert heading.split()[:2] == ["QUEUE", "ID"]
    assert first.split()[:2] == ["billing", str(young)]
    assert "no_attempts_left" in first
    assert "once is enough" in first
    assert second.split()[:2] == ["mail", str(old)]
    assert "first line" in second
    assert "second" not in second, "a table has one line for it"
    assert "acme" in second
    found = command("dlq", "list", "mail", "--json").ok().json
    assert [each["message_id"] for each in found] == [old]
    assert (found[0]["payload"], base64.b64decode(found[0]["body"])) == (None, b"\x00")
    assert found[0]["last_error"] == "first line\nsecond \x1b[31m"


def test_ten_thousand_dead_letters_by_pages(
    inside: Inside, queue: penstock.Client, sql18: psycopg.Connection[Any]
) -> None:
    bury_many(sql18, "q", 10_000)
    (other,) = bury(queue, "other", ["x"])
    found: list[int] = []
    after: list[str] = []
    while page := inside("dlq", "list", "q", "-n", "4000", "--json", *after).ok().json:
        found += [each["message_id"] for each in page]
        after = ["--after", page[-1]["cursor"]]
    assert len(found) == len(set(found)) == 10_000
    first = inside("dlq", "list", "-n", "1").ok()
    assert first.out.splitlines()[1].split()[:2] == ["other", str(other)]
    cursor = first.err.split("--after '")[1].rstrip("'\n")
    second = inside("dlq", "list", "-n", "1", "--after", cursor).ok()
    assert second.out.splitlines()[1].split()[:2] == ["q", str(found[0])]
    assert len(inside("dlq", "list").ok().out.splitlines()) == 101
    # All of them at once.
    assert inside("dlq", "requeue", "q", "--all", "--json").ok().json["requeued"] == 10_000
    assert dead_in(queue, "q") == []
    assert queue.get_queue_statistics("q")[0].pending_count == 10_000


def test_show(inside: Inside, queue: penstock.Client) -> None:
    (dead,) = bury(
        queue, "q", [b"\x00\xff"], "line one\n  line two \x1b]0;title\x07", headers={"task": "pay"}
    )
    shown = inside("dlq", "show", "q", str(dead)).ok()
    assert "line one\n" in shown.out
    assert "line two \ufffd]0;title\ufffd" in shown.out
    assert shown.out.endswith("2 bytes\n")
    assert '{"task":"pay"}' in shown.out
    assert inside("dlq", "show", "q", str(dead), "--payload").ok().raw == b"\x00\xff"
    found = inside("dlq", "show", "q", str(dead), "--json").ok().json
    assert (found["state"], found["reason"], found["message_id"]) == ("dead", "failed", dead)
    assert base64.b64decode(found["body"]) == b"\x00\xff"
    ready = queue.send("q", "alive")
    inside("dlq", "show", "q", str(ready)).failed(3, str(ready), "ready")
    inside("dlq", "show", "q", "999999").failed(3, "999999")


def test_requeue_some_or_all(inside: Inside, queue: penstock.Client) -> None:
    first, second, third, fourth = exhaust(queue, "q", [1, 2, 3, 4])
    answer = inside("dlq", "requeue", "q", str(first)).ok()
    assert (answer.out, answer.err) == ("", "1 message requeued\n")
    details = queue.get_message("q", first)
    assert details is not None
    assert (details.state, details.delivery_attempts) == ("ready", 0)
    # Twice the same is once; one that is not there is named, and the others are done.
    answer = inside("dlq", "requeue", "q", str(second), str(second), str(first), "999999", "--json")
    assert answer.code == 3
    facts = answer.json
    assert (facts["queue_name"], facts["requeued"], facts["missing"]) == ("q", 1, [first, 999999])
    assert str(first) in answer.err
    assert "999999" in answer.err
    assert dead_in(queue, "q") == [third, fourth]
    line = inside("dlq", "requeue", "q", "999999", "999999").err
    assert line.count("999999") == 1
    assert inside("dlq", "requeue", "q", "--all").ok().err == "2 messages requeued\n"
    assert dead_in(queue, "q") == []
    assert inside("dlq", "requeue", "q", "--all").code in {0, 4}


def test_requeue_what_another_session_requeues(
    inside: Inside, queue: penstock.Client, sql18: psycopg.Connection[Any]
) -> None:
    (message_id,) = exhaust(queue, "q", [1])
    with sql18.transaction():
        sql18.execute("select penstock.requeue_dlq_messages('q', %s)", [[message_id]])
        answer = inside("dlq", "requeue", "q", str(message_id))
    assert answer.code == 3
    assert "1 message had been requeued or purged meanwhile" in answer.err


def test_add_retries(inside: Inside, queue: penstock.Client) -> None:
    (rejected,) = bury(queue, "q", ["rejected"])
    queue.alter_queue("q", max_delivery_attempts=1)
    ids = queue.send_many("q", [1, 2], headers={"task": "pay"}) + queue.send_many(
        "q", [3], headers={"task": "mail"}
    )
    for message in queue.consume_batch("q"):
        queue.nack(message)
    answer = inside("dlq", "add-retries", "q", "2", "--task", "mail").ok()
    assert (answer.out, answer.err) == ("", "1 message requeued\n")
    assert dead_in(queue, "q") == [rejected, *ids[:2]]
    answer = inside("dlq", "add-retries", "q", "2", "--json").ok()
    assert answer.json == {"queue_name": "q", "requeued": 2}
    assert dead_in(queue, "q") == [rejected], "it was told not to try again"
    details = queue.get_message("q", ids[0])
    assert details is not None
    assert (details.state, details.delivery_attempts) == ("ready", 1)


def test_purge(inside: Inside, queue: penstock.Client) -> None:
    bury(queue, "a", [1, 2, 3])
    bury(queue, "b", [1])
    queue.send("a", "alive")
    inside("dlq", "purge", "a").failed(2, "Delete 3 dead letters of queue a?", "--yes")
    inside("dlq", "purge", "--all").failed(2, "Delete 4 dead letters of all queues?", "--yes")
    answer = inside("dlq", "purge", "a", "--yes").ok()
    assert (answer.out, answer.err) == ("", "3 dead letters deleted\n")
    assert len(queue.list_dlq_messages()) == 1
    assert inside("dlq", "purge", "a").ok().err == "0 dead letters deleted\n"
    assert inside("dlq", "purge", "--all", "-y", "--json").ok().json == {"queue_name": None, "purged": 1}
    assert queue.list_dlq_messages() == []
    assert queue.get_queue_statistics("a")[0].pending_count == 1


def test_purge_asks(command: Command, queue: penstock.Client) -> None:
    bury(queue, "q", [1, 2])
    for answer, code, left in (("\x03", 130, 2), ("\x04", 130, 2), ("n\n", 1, 2), ("y\n", 0, 0)):
        with command.terminal("dlq", "purge", "q") as terminal:
            terminal.until("Delete 2 dead letters of queue q? [y/N]")
            terminal.type(answer)
            assert terminal.wait() == code
            assert terminal.is_sane()
        assert len(queue.list_dlq_messages()) == left


def test_mistakes(inside: Inside, queue: penstock.Client) -> None:
    queue.create_queue("q")
    for arguments in (
        ["list", "nix"],
        ["show", "nix", "1"],
        ["requeue", "nix", "1"],
        ["requeue", "nix", "--all"],
        ["add-retries", "nix", "1"],
        ["purge", "nix", "--yes"],
    ):
        inside("dlq", *arguments).failed(3, 'queue "nix"', "penstock queue list")
    for arguments, part in (
        (["requeue", "q"], "--all"),
        (["requeue", "q", "1", "--all"], "--all"),
        (["requeue", "q", "x"], "x"),
        (["requeue", "q", str(2**63)], str(2**63)),
        (["add-retries", "q"], "ATTEMPTS"),
        (["add-retries", "q", "0"], "ATTEMPTS"),
        (["add-retries", "q", str(2**31)], str(2**31)),
        (["purge"], "QUEUE"),
        (["purge", "q", "--all"], "--all"),
        (["list", "--after", "nonsense"], "nonsense"),
        (["list", "-n", "0"], "--count"),
        (["list", "-n", "9999999"], "9999999"),
    ):
        inside("dlq", *arguments).failed(2, part)


def test_a_long_error_does_not_fill_the_screen(command: Command, queue: penstock.Client) -> None:
    (dead,) = bury(queue, "q", [1], "x" * 5000 + "END")
    (line,) = command("dlq", "list").ok().out.splitlines()[1:]
    assert len(line) < 250
    assert "END" in command("dlq", "show", "q", str(dead)).ok().out, "all of it"
    with command.terminal("dlq", "list", columns=80) as terminal:
        assert terminal.wait() == 0
        assert len(terminal.text.splitlines()) < 12


def test_pages_can_be_interrupted_in_between(
    command: Command, queue: penstock.Client, sql18: psycopg.Connection[Any]
) -> None:
    bury_many(sql18, "q", 25_000)
    with sql18.transaction():
        # The first page waits for its lock until the signal has come.
        sql18.execute(
            "select pg_advisory_xact_lock(1346719315, q.id) from penstock.queues q where q.name = 'q'"
        )
        process = command.start("dlq", "requeue", "q", "--all")
        eventually(lambda: _waits(sql18), "the first page waits")
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    _, err = process.communicate(timeout=60)
    assert b"10000 messages requeued until then." in err.replace(b",", b"")
    assert process.returncode != 0
    assert queue.get_queue_statistics("q")[0].dead_count == 15_000
    assert command("dlq", "requeue", "q", "--all").ok().err.replace(",", "") == "15000 messages requeued\n"


def _waits(sql: psycopg.Connection[Any]) -> bool:
    found = sql.execute("select from pg_locks where locktype = 'advisory' and not granted").fetchone()
    return found is not None


def test_groups_and_letters_of_a_group(inside: Inside, queue: penstock.Client) -> None:
    assert inside("dlq", "groups").ok().err == "There are no dead letters.\n"
    bury(queue, "mail", [1], "no route to host 7")
    first, second = bury(queue, "imports", [1, 2], "row 1 is bad")
    listed = inside("dlq", "groups").ok()
    heading, *rows = listed.out.splitlines()
    assert heading.split() == ["QUEUE", "COUNT", "FIRST", "LAST", "SAMPLE", "ERROR"]
    assert [row.split()[:2] for row in rows] == [["mail", "1"], ["imports", "2"]]
    assert rows[1].endswith("row <n> is bad")
    (found,) = inside("dlq", "groups", "imports", "--json").ok().json
    assert (found["error_key"], found["dead_count"]) == ("row <n> is bad", 2)
    assert sorted(found["sample_ids"]) == [first, second]
    letters = inside("dlq", "list", "--error", "row <n> is bad", "--json").ok().json
    assert sorted(each["message_id"] for each in letters) == [first, second]
    page = inside("dlq", "groups", "-n", "1").ok()
    assert "--after" in page.err


def test_delete_and_purge_a_group(inside: Inside, queue: penstock.Client) -> None:
    first, second, third = bury(queue, "q", [1, 2, 3], "bad 1")
    (other,) = bury(queue, "q", [4], "other")
    answer = inside("dlq", "delete", "q", str(first), str(first), "--yes").ok()
    assert answer.err == "1 dead letter deleted\n"
    assert dead_in(queue, "q") == [second, third, other]
    missing = inside("dlq", "delete", "q", str(first), str(second), "--yes", "--json")
    assert (missing.code, missing.json["deleted"]) == (3, 1)
    answer = inside("dlq", "purge", "q", "--error", "bad <n>", "--yes", "--json").ok()
    assert answer.json["purged"] == 1
    assert dead_in(queue, "q") == [other]
    bury(queue, "p", [1], "other")
    inside("dlq", "purge", "--all", "--error", "other", "--yes").ok()
    assert queue.list_dlq_messages() == []


def test_redrive(inside: Inside, queue: penstock.Client) -> None:
    ids = bury(queue, "q", list(range(30)), "bad 1")
    (other,) = bury(queue, "q", [4], "other")
    answer = inside("dlq", "redrive", "q", "--error", "bad <n>", "--rate", "100", "--json").ok()
    assert (answer.json["requeued"], answer.json["state"]) == (30, "done")
    assert dead_in(queue, "q") == [other]
    (operation,) = queue.list_operations()
    assert (operation.id, operation.done_count) == (answer.json["operation_id"], 30)
    assert operation.done_per_second is not None
    assert operation.done_per_second < 200
    assert sorted(each.id for each in queue.consume_batch("q", batch_size=100)) == ids
    assert inside("dlq", "redrive", "empty").code != 0


def test_a_redrive_whose_canary_dies_stops(command: Command, queue: penstock.Client) -> None:
    ids = bury(queue, "q", [1, 2, 3])
    process = command.start("dlq", "redrive", "q", "--canary")
    eventually(lambda: dead_in(queue, "q") == ids[1:], "the canary is redriven")
    (canary,) = queue.consume_batch("q")
    queue.reject(canary, "no")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"message {ids[0]}, the canary, died again" in err.decode()
    assert dead_in(queue, "q") == ids


def test_ctrl_c_cancels_a_redrive(command: Command, queue: penstock.Client) -> None:
    bury(queue, "q", list(range(100)))
    process = command.start("dlq", "redrive", "q", "--rate", "5")
    eventually(lambda: any(each.done_count for each in queue.list_operations()), "it has begun")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode not in (0, 1)
    assert b"requeued" in err
    (operation,) = queue.list_operations()
    assert operation.state == "cancelled"
    assert len(dead_in(queue, "q")) == 100 - operation.done_count > 0
