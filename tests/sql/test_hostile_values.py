"""What the fuzz test of every function (tests/fuzz) has found, each by its name."""

from __future__ import annotations

import pytest
from psycopg.types.json import Jsonb

from .bad_input import Bad, expect
from .conftest import ACTIVE
from .engine import Engine

ONE = Jsonb(1)
FARTHEST = [-(2**63), 2**63 - 1]


@pytest.mark.parametrize(
    "bad",
    [
        expect("PN004", "payloads", "2 dimensions").of("send_messages", "billing", [[ONE], [ONE]]),
        expect("PN004", "payloads", "2 dimensions").of(
            "send_messages", "billing", [[ONE], [ONE]], priority=0
        ),
        expect("PN004", "payloads", "3 dimensions").of("publish_messages", "orders", [[[ONE]]]),
        expect("PN004", "message_ids", "2 dimensions").of("ack_messages", "billing", [[ACTIVE]], ["worker"]),
        expect("PN004", "tokens", "2 dimensions").of("ack_messages", "billing", [ACTIVE], [["worker"]]),
        expect("PN004", "results", "2 dimensions").of(
            "ack_messages", "billing", [ACTIVE], ["worker"], [[ONE]]
        ),
        expect("PN004", "message_ids", "2 dimensions").of("ack_tasks", "billing", [[ACTIVE]], "worker"),
        expect("PN004", "results", "2 dimensions").of("ack_tasks", "billing", [ACTIVE], "worker", [[ONE]]),
        expect("PN004", "queues", "2 dimensions").of(
            "register_worker", "w", "host", 1, "1.0", [["mail"]], ["task"], 1
        ),
        expect("PN004", "tasks", "2 dimensions").of(
            "register_worker", "w", "host", 1, "1.0", ["mail"], [["task"]], 1
        ),
    ],
)
def test_an_array_of_arrays_is_no_list(house: Engine, bad: Bad) -> None:
    bad.check(house)


def test_ids_may_be_as_far_apart_as_can_be(house: Engine) -> None:
    ids = [ACTIVE, *FARTHEST]
    extended = house.rows("batch_extend_message_vt", "billing", ids, "worker", 30)
    assert [row.message_id for row in extended] == [ACTIVE]
    assert house.values("ack_tasks", "billing", FARTHEST, "worker") == []
    assert house.values("ack_messages", "billing", ids, ["worker"] * 3) == [ACTIVE]
