"""A message that moves while a call reads it is found: forwards, backwards, and again and again."""

from collections.abc import Iterator

import pytest

from tests.conftest import Connect
from tests.isolation.rewriting import CLOSE_GATE, GATES, OPEN_GATE, PAUSE, pause_before, rewrite
from tests.isolation.session import Spec, open_spec

STOPS = 20
GATE = "nextval('public.gates')::int"
STOPPED = "select from pg_locks where classid = %s and objid = %s and not granted"


@pytest.fixture
def own_spec(connect18: Connect) -> Iterator[Spec]:
    """Sessions on a database whose functions the test may change."""
    with open_spec(connect18) as opened:
        yield opened


@pytest.mark.parametrize("function", ["get_message", "get_result"])
def test_a_message_that_moves_at_each_step_of_a_reader(own_spec: Spec, function: str) -> None:
    """The reader stops in its look-up of ready messages, and in that of completed ones."""
    own_spec.watcher.execute(PAUSE)
    own_spec.watcher.execute("create sequence public.gates")
    rewrite(
        own_spec.watcher,
        "_find_ready",
        "from generate_series(0, 3) p",
        f"from (with gate as materialized (select public.pause({GATE})) select from gate) stop"
        " cross join generate_series(0, 3) p",
    )
    pause_before(own_spec.watcher, "_find_done", "(penstock.clock() at time zone 'UTC')::date", GATE)
    mover, reader, gatekeeper = own_spec.sessions(3)
    mover.value("create_queue", "q")
    (message,) = mover.send("q")
    held = mover.claim("q", 1)
    for gate in range(1, STOPS):
        gatekeeper.run(CLOSE_GATE, gate)
    reading = reader.waits(function, "q", message)
    for gate in range(1, STOPS):
        while not (is_done := reading.settle()) and not own_spec.look(STOPPED, GATES, gate):
            pass  # on its way from the gate before
        if is_done:
            break
        if held:
            mover.value("release_message", "q", message, held[0].token)
            held = []
        else:
            held = mover.claim("q", 1)
        gatekeeper.run(OPEN_GATE, gate)
    assert reading.rows()
