"""The text of the calls on each PostgreSQL that is here; all else of the clients is tested on the newest."""

from datetime import UTC, datetime, timedelta

from penstock import HIGH, Client, NewMessage


def test_every_kind_of_call(database: str) -> None:
    with Client(database) as queue:
        queue.create_topic("orders")
        queue.create_queue("billing", topic="orders", max_delivery_attempts=1, retry_delays=[1, 2])
        later = datetime.now(UTC) + timedelta(days=1)
        first = queue.publish(
            "orders", {"n": 1.5e300}, priority=HIGH, tenant="acme", headers={"h": 1}, ttl=60
        )
        queue.send("billing", b"\x00raw", delay=0.0)
        mixed = [NewMessage(3, delay=60), NewMessage(b"4", deliver_after=later), NewMessage([5]), 6]
        assert len(queue.send_many("billing", mixed, tenant="globex")) == 4
        assert len(queue.send_many("billing", range(2500), atomic=True)) == 2500

        seen = []
        for message in queue.consume("billing", batch_size=3, auto_extend=True):
            message.extend(5)
            with message:
                seen.append(message.payload)
                if len(seen) == 2:
                    raise ValueError("no")
            if len(seen) == 4:
                break
        assert seen == [{"n": 1.5e300}, b"\x00raw", [5], 6]

        (found,) = queue.get_queue_statistics("billing")
        assert (found.pending_count, found.processing_count, found.completed_count, found.dead_count) == (
            2502,
            0,
            3,
            1,
        )
        (letter,) = queue.list_dlq_messages("billing")
        assert (letter.payload, letter.last_error) == (b"\x00raw", "ValueError: no")
        details = queue.get_message("billing", first)
        assert details is not None
        assert (details.state, details.headers, details.tenant) == ("done", {"h": 1}, "acme")
        assert {listed.due_at for listed in queue.list_messages("billing", state="scheduled")} > {later}

        with queue.transaction() as transaction:
            batch = transaction.consume_batch("billing", batch_size=500, token="me")  # noqa: S106
            assert transaction.pulse("me", 60) == 500
            assert transaction.extend_many(batch, 1) == []
            assert transaction.ack_many(batch) == []
        assert [setting.retry_delays for setting in queue.list_queues()] == [(1, 2)]
        assert queue.requeue_dlq_messages("billing", [letter.message_id]) == 1
        assert queue.cancel_message("billing", letter.message_id)
        assert queue.maintain() is not None
        assert queue.diagnose_server().version // 10000 >= 15
        assert {holder.own for holder in queue.diagnose_holders()} == {True}
        assert {"ready", "active"} < {table.table_name for table in queue.diagnose_tables()}
        assert len(queue.diagnose_statements()) > 1
        assert queue.diagnose_engine().queue_count == 1
        assert [found.ready_count for found in queue.diagnose_queues()] == [1000]
        assert queue.diagnose_errors() == []
        assert queue.diagnose_leases() == []
        assert queue.diagnose_priorities() == []
        assert queue.diagnose_groups() == []
        assert abs(queue.clock() - datetime.now(UTC)) < timedelta(minutes=1)
