"""A database with something of everything, and for each function a call that finds something to do in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from .catalog import Function, Parameter
from .hostile import SCALARS

QUEUES = {
    "plain": "topic_name => 'news'",
    "capped": "max_active => 20",
    "pooled": "max_active => 20, priority_shares => '{0,0,0,0}', retain_completed_seconds => 0",
    "tenants": "tenant_max_active => 5, message_ttl_seconds => 86400",
    "both": "topic_name => 'news', max_active => 20, tenant_max_active => 5",
    "session": "exclusive => true, keep_alive_seconds => 86400",
    "small": "max_payload_bytes => 100, notify => false, visibility_backoff => 2, retry_delays => '{1,2}'",
    "paused": "max_delivery_attempts => 1",
}
# Of each queue, from its first id on.
DONE, DEAD, ANOTHER_DEAD, ACTIVE, ANOTHER_ACTIVE, READY, SCHEDULED, LARGE, KEYED = range(9)
TENANTS = "array['acme', 'acme', 'acme', null, 'acme']"
GROUP = "(select min(g.id) from penstock.groups g)"
OPERATION = "(select min(o.id) from penstock.operations o)"


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the ids of each queue begin."""

    first_ids: dict[str, int]

    def arguments(self, function: Function, queue: str) -> dict[str, str]:
        """Those with which the function does what it is for, in that queue."""
        return {
            parameter.name: self.usual(function, parameter, queue)
            for parameter in function.parameters
            if not parameter.is_optional or (function.name, parameter.name) in ALSO_GIVEN
        }

    def usual(self, function: Function, parameter: Parameter, queue: str) -> str:
        """What the parameter may well be."""
        text = SPECIAL.get((function.name, parameter.name)) or USUAL.get(parameter.name)
        if text is None:
            return _any_value(parameter.type)
        first = self.first_ids[queue]
        ids = {name: str(first + n) for n, name in enumerate(NAMES)}
        return text.format(queue=queue, **ids)


NAMES = ["done", "dead", "another_dead", "active", "another_active", "ready", "scheduled", "large", "keyed"]

# By the name of the parameter: arrays have two elements, so that each position can be spoilt.
USUAL = {
    "queue_name": "'{queue}'",
    "topic_name": "'news'",
    "callback_queue": "'{queue}'",
    "message_id": "{active}",
    "message_ids": "array[{active}, {another_active}]",
    "token": "'holder'",
    "consumer_token": "'holder'",
    "tokens": "array['holder', 'holder']",
    "tenant": "'acme'",
    "results": "array['1', '\"two\"']::jsonb[]",
    "payload": "'{{\"n\": 1}}'",
    "payloads": "array['1', '\"two\"']::jsonb[]",
    "bodies": "array['one', 'two']::bytea[]",
    "tenants": "array['acme', 'new']",
    "priorities": "array[0, 3]",
    "ttls": "array[60, 3600]",
    "headers_list": "array['{{}}', '{{\"a\": 1}}']::jsonb[]",
    "deliver_afters": "array[now(), now() + interval '1 hour']",
    "dedup_keys": "array['one', 'two']",
    "priority": "2",
    "ttl_seconds": "60",
    "attempts": "2",
    "vt_seconds": "30",
    "batch_size": "5",
    "extension_seconds": "30",
    "keep_alive_seconds": "60",
    "group_id": GROUP,
    "group_ids": f"array[{GROUP}, {GROUP}]",
    "positions": "array[0, 1]",
    "operation_id": OPERATION,
    "error_key": "'failed'",
    "payload_path": "array['a', 'b']",
    "payload_value": "'1'",
    "total": "2",
    "name": "'nightly'",
    "definition": "'{{\"every\": 60}}'",
    "missed": "'one'",
    "expected": "'2030-01-01 00:00+00'",
    "next_at": "'2030-01-02 00:00+00'",
    "ticks": "array['2030-01-01 00:00+00', '2030-01-01 12:00+00']::timestamptz[]",
    "hostname": "'host'",
    "version": "'1.0'",
    "pid": "1",
    "concurrency": "5",
    "queues": "array['plain', 'both']",
    "queue_names": "array['plain', 'both']",
    "role_name": "'penstock_viewer'",
    "queue_right": "'publish'",
    "tasks": "array['one', 'two']",
    "held": "1",
    "running": "'[]'",
    "stopping": "false",
    "headers": "'{{}}'",
    "callback_headers": "'{{}}'",
    "callback_payload": "'{{}}'",
    "retry_delays": "array[1, 2]",
    "priority_shares": "array[40, 60, 0, 0]",
}
SPECIAL = {
    ("create_queue", "queue_name"): "'new'",
    ("create_topic", "topic_name"): "'new'",
    ("create_queue", "topic_name"): "'news'",
    ("cancel_message", "message_id"): "{ready}",
    ("requeue_dlq_messages", "message_ids"): "array[{dead}, {another_dead}]",
    ("delete_dlq_messages", "message_ids"): "array[{dead}, {another_dead}]",
    ("deliver_message_now", "message_id"): "{scheduled}",
    ("deliver_messages_now", "message_ids"): "array[{scheduled}, {ready}]",
    ("start_operation", "action"): "'redrive'",
    ("record_action", "action"): "'looked'",
    ("extend_queue_keep_alive", "queue_name"): "'session'",
}
# Optional, and without them the function would not get far.
ALSO_GIVEN = {
    ("ack_tasks", "results"),
    ("ack_tasks", "group_ids"),
    ("ack_tasks", "positions"),
    ("ack_messages", "results"),
    ("search_messages", "tenant"),
}


def _any_value(type_name: str) -> str:
    element = type_name.removesuffix("[]")
    value = next(value for value in SCALARS[element].values() if value != "null")
    return value if element == type_name else f"array[({value})::{element}, ({value})::{element}]"


def furnish(connection: psycopg.Connection[Any]) -> Stage:
    """Makes queues of all kinds, each with messages in all states, a group, a schedule and a worker."""

    def run(statement: str) -> None:
        connection.execute(statement.encode())

    run("select penstock.create_topic('news')")
    first_ids = {}
    for number, (queue, settings) in enumerate(QUEUES.items(), start=1):
        first = first_ids[queue] = number * 1000
        run(f"select penstock.create_queue('{queue}', {settings})")
        run(f"select setval('penstock.message_ids', {first}, false)")
        payloads = "array_fill('1'::jsonb, array[5])"
        run(f"select penstock.send_messages('{queue}', {payloads}, tenants => {TENANTS})")
        run(f"select penstock.consume_messages_batch('{queue}', 'holder', 3600, 5)")
        run(f"select penstock.ack_message('{queue}', {first + DONE}, 'holder', '1')")
        run(f"select penstock.reject_message('{queue}', {first + DEAD}, 'holder', 'broken')")
        run(f"select penstock.nack_message('{queue}', {first + ANOTHER_DEAD}, 'holder', 0, 'failed', 1)")
        large = "'3'" if queue == "small" else "to_jsonb(repeat(md5('x'), 100))"
        for number_of_message, sent in {
            READY: "'2'",
            SCHEDULED: "'2', penstock.clock() + interval '1 day'",
            LARGE: large,
            KEYED: "'4', dedup_key => 'key', tenant => 'acme'",
        }.items():
            run(f"select setval('penstock.message_ids', {first + number_of_message}, false)")
            run(f"select penstock.send_message('{queue}', {sent})")
    run("select penstock.pause_queue('paused')")
    run("select penstock.create_group(2, 'plain', '{}', null, with_results => true)")
    run(
        "select penstock.put_schedule('nightly', 'both', '1', null, 2, null, null,"
        " '{\"every\": 60}', 'one', '2030-01-01 00:00+00')"
    )
    run("select penstock.start_operation('redrive', 'capped', per_second => 1)")
    run("select penstock.register_worker('holder', 'host', 1, '1.0', array['plain'], array['task'], 5)")
    run("select penstock.maintain()")
    run("select penstock.maintain()")
    stage = Stage(first_ids)
    expected = {
        (first + n, state)
        for queue, first in first_ids.items()
        for n, state in enumerate(["done", "dead", "dead", "active", "active", "ready", "scheduled", "ready"])
        if (queue, state) != ("pooled", "done")
    }
    found = {
        (message_id, state)
        for queue in QUEUES
        for message_id, state in connection.execute(
            "select message_id, state from penstock.list_messages(%s)", (queue,)
        )
    }
    assert expected <= found, expected - found
    return stage
