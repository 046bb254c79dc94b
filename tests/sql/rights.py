"""Which role may call what, read from roles.sql, and a call of each function about a restricted queue."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock import schema

__all__ = ["CALLS", "ROLES", "Call", "callable_by"]

ROLES = ("penstock_publisher", "penstock_consumer", "penstock_viewer", "penstock_admin")

_ROW = re.compile(r"^ *\['(\w+)', +'(penstock_\w+)'\],?$", re.MULTILINE)


def callable_by() -> dict[str, set[str]]:
    """The table of roles.sql: for each function the roles that may call it, penstock_admin among them."""
    table: dict[str, set[str]] = {}
    for function, role in _ROW.findall(schema.load().roles):
        assert role in ROLES, role
        table.setdefault(function, {"penstock_admin"}).add(role)
    return table


@dataclass(frozen=True, slots=True)
class Call:
    """A call about the queue "shut", which is restricted, and what a role without the right gets.

    needs: the rights of which one is enough; none: an administrator's function. refused: whether the call
    fails without it; else it shows nothing of the queue. None: no queue is concerned.
    """

    text: str
    needs: tuple[str, ...] = ()
    refused: bool | None = True


_PUBLISH, _CONSUME, _VIEW = ("publish",), ("consume",), ("view",)
_COUNT, _RESULT, _USE = ("consume", "view"), ("publish", "view"), ("publish", "consume", "view")
_NOTHING = Call("", (), None)

# Every function: a new one without an entry fails the test.
CALLS: dict[str, Call] = {
    "send_message": Call("send_message('shut', '1')", _PUBLISH),
    "send_messages": Call("send_messages('shut', '{1,2}', dedup_keys => '{a,b}')", _PUBLISH),
    "publish_message": Call("publish_message('t', '1')", _PUBLISH),
    "publish_messages": Call("publish_messages('t', '{1,2}')", _PUBLISH),
    "cancel_message": Call("cancel_message('shut', 1)", _PUBLISH),
    "deliver_message_now": Call("deliver_message_now('shut', 1)", _PUBLISH),
    "deliver_messages_now": Call("deliver_messages_now('shut', '{1}')", _PUBLISH),
    "create_group": Call("create_group(1, 'shut', '1', null)", _PUBLISH),
    "put_schedule": Call(
        "put_schedule('s', 'shut', '1', null, 2, null, null, '1', 'skip', '2030-01-01')", _PUBLISH
    ),
    "advance_schedule": Call(
        "advance_schedule('s', '2030-01-01', '2030-01-02', array['2030-01-01']::timestamptz[])", _PUBLISH
    ),
    "consume_message": Call("consume_message('shut', 'me')", _CONSUME),
    "consume_messages_batch": Call("consume_messages_batch('shut', 'me')", _CONSUME),
    "consume_tasks": Call("consume_tasks('shut', '{a}', 'me')", _CONSUME),
    # A queue that the caller may not consume from is returned, whatever is in it: the claim says why.
    "queues_with_work": _NOTHING,
    "park_messages": Call("park_messages('shut', '{2}', 'holder', '{a}')", _CONSUME),
    "ack_message": Call("ack_message('shut', 2, 'holder')", _CONSUME),
    "ack_messages": Call("ack_messages('shut', '{2,3}', '{holder,other}')", _CONSUME),
    "nack_message": Call("nack_message('shut', 2, 'holder')", _CONSUME),
    "release_message": Call("release_message('shut', 2, 'holder')", _CONSUME),
    "reject_unreadable_messages": Call("reject_unreadable_messages('shut')", _CONSUME),
    "nack_messages": Call("nack_messages('shut', '{2}', '{holder}')", _CONSUME),
    "release_messages": Call("release_messages('shut', '{2}', '{holder}')", _CONSUME),
    "reject_messages": Call("reject_messages('shut', '{2}', '{holder}')", _CONSUME),
    "reject_message": Call("reject_message('shut', 2, 'holder')", _CONSUME),
    "extend_message_vt": Call("extend_message_vt('shut', 2, 'holder', 5)", _CONSUME),
    "batch_extend_message_vt": Call("batch_extend_message_vt('shut', '{2}', 'holder', 5)", _CONSUME),
    "pulse": Call("pulse('holder', 60, array['shut'])", _CONSUME),
    "extend_queue_keep_alive": Call("extend_queue_keep_alive('shut', 60)", _CONSUME),
    "ack_tasks": Call("ack_tasks('shut', '{2}', 'holder')", _CONSUME),
    "announce_done": Call("announce_done('shut', '{2}')", _CONSUME),
    "declare_queue": Call("declare_queue('shut')", _USE),
    "queue_difference": Call("queue_difference('shut', 7)", _USE),
    "get_result": Call("get_result('shut', 2)", _RESULT),
    "list_messages": Call("list_messages('shut')", _VIEW),
    "get_message": Call("get_message('shut', 1)", _VIEW),
    "explain_delivery": Call("explain_delivery('shut', 1)", _VIEW),
    "explain_delivery_data": Call("explain_delivery_data('shut', 1)", _VIEW),
    "list_tenants": Call("list_tenants('shut')", _COUNT),
    "list_permits": Call("list_permits('shut')", _COUNT),
    "search_messages": Call("search_messages(message_id => 1)", _VIEW, refused=False),
    "list_dlq_groups": Call("list_dlq_groups()", _VIEW, refused=False),
    "get_operation": Call("get_operation(1)", _VIEW, refused=False),
    "list_operations": Call("list_operations()", _VIEW, refused=False),
    "list_actions": Call("list_actions()", _VIEW, refused=False),
    "list_queues": Call("list_queues()", _USE, refused=False),
    "get_queue_statistics": Call("get_queue_statistics()", _COUNT, refused=False),
    "queue_history": Call("queue_history('shut')", _COUNT),
    "overview_history": Call("overview_history()", _COUNT, refused=False),
    "list_dlq_messages": Call("list_dlq_messages()", _VIEW, refused=False),
    "list_groups": Call("list_groups()", _VIEW, refused=False),
    "list_schedules": Call("list_schedules()", _RESULT, refused=False),
    "list_workers": Call("list_workers()", _COUNT, refused=False),
    "diagnose_queues": Call("diagnose_queues()", _COUNT, refused=False),
    "diagnose_parked": Call("diagnose_parked()", _COUNT, refused=False),
    "diagnose_errors": Call("diagnose_errors()", _VIEW, refused=False),
    "diagnose_leases": Call("diagnose_leases()", _COUNT, refused=False),
    "diagnose_priorities": Call("diagnose_priorities()", _COUNT, refused=False),
    "diagnose_groups": Call("diagnose_groups()", _VIEW, refused=False),
    # They do what is due, for all queues, and take nothing from the caller but a token or an id of a group.
    **dict.fromkeys(("maintain", "sample", "finish_groups"), _NOTHING),
    # The token of a worker is its secret.
    **dict.fromkeys(("register_worker", "beat_worker", "forget_worker"), _NOTHING),
    # They know of no single queue.
    **dict.fromkeys(("channel", "done_channel", "clock", "schema_version", "list_topics"), _NOTHING),
    **dict.fromkeys(("diagnose_server", "diagnose_holders", "diagnose_tables"), _NOTHING),
    **dict.fromkeys(("diagnose_statements", "diagnose_engine"), _NOTHING),
}
