"""Payloads: what goes in comes out, what cannot be stored is refused with the path to it."""

# ruff: noqa: PT012 - it is a whole block that raises

from __future__ import annotations

import array
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from penstock import AsyncClient, AsyncMessage, NewMessage, PayloadInvalid, PayloadTooLarge
from penstock.payloads import columns_of, encode, encode_all
from tests.client.models import AT, INSTANCES, NUMBER, Aliased, Line, Model, Money, Order, Row, Typed, Zipped
from tests.sql.engine import Engine

from .test_bad_input import NOWHERE

SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.integers() | TEXT | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=20,
)


def alike(left: Any, right: Any) -> bool:
    """Equal, and of the same types: 1, 1.0 and True are equal in Python."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(alike(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list):
        return len(left) == len(right) and all(map(alike, left, right))
    return type(left) is type(right) and left == right


async def there_and_back(client: AsyncClient, payload: Any) -> Any:
    await client.send("q", payload)
    message = await client.consume_one("q")
    assert message is not None
    await message.ack()
    return message.payload


# Round trips


@SETTINGS
@given(payloads=st.lists(JSON, min_size=1, max_size=5), headers=st.dictionaries(TEXT, JSON, max_size=3))
async def test_all_that_json_can_hold(
    client: AsyncClient, payloads: list[Any], headers: dict[str, Any]
) -> None:
    await client.create_queue("q")
    ids = await client.send_many("q", payloads, headers=headers)
    messages = await client.consume_batch("q")
    assert [message.id for message in messages] == ids
    for message, payload in zip(messages, payloads, strict=True):
        assert alike(payload, message.payload)
        assert alike(headers, message.headers)
    await client.ack_many(messages)


@SETTINGS
@given(payloads=st.lists(JSON, min_size=1, max_size=5))
async def test_many_in_one_step_are_what_they_are_one_by_one(payloads: list[Any]) -> None:
    together = encode_all(payloads, 1_000_000)
    one_by_one = ",".join(str(encode(payload)) for payload in payloads)
    assert together in (None, f"[{one_by_one}]")


@SETTINGS
@given(data=st.data(), names=st.lists(TEXT, min_size=1, max_size=3, unique=True), count=st.integers(1, 6))
async def test_rows_in_one_step_are_what_they_are_one_by_one(
    data: st.DataObject, names: list[str], count: int
) -> None:
    columns = [data.draw(st.sampled_from([TEXT, st.integers(), st.floats(), JSON])) for _ in names]
    row = st.fixed_dictionaries(dict(zip(names, columns, strict=True)))
    rows = data.draw(st.lists(row, min_size=count, max_size=count))
    together = encode_all(rows, 1_000_000)
    if together is not None:
        assert together == f"[{','.join(str(encode(row)) for row in rows)}]"


async def test_columns_of_rows() -> None:
    assert columns_of([{"a": 1, "b": 1.5}, {"b": 2.5, "a": None}]) == {"a": {int, type(None)}, "b": {float}}
    assert columns_of([{}, {}]) == {}
    others: list[list[Any]] = [
        [{"a": 1}, {"b": 1}],
        [{"a": 1}, {"a": 1, "b": 1}],
        [{"a": 1, "b": 2}],  # fewer rows than keys
        [{"a": 1}, OrderedDict(a=1)],
        [{"a": 1}, [1]],
        [{1: 1}, {1: 1}],
        [{"a": 1}, {"a": [1]}],
        [{"a": 1.5}, {"a": math.nan}],
        [{"a": 1.5}, {"a": -math.inf}],
        [{"a": 1.5}, {"a": -1e17}],
        [{"a": math.inf}, {"a": -math.inf}],
    ]
    for rows in others:
        assert columns_of(rows) is None, rows


@pytest.mark.parametrize(
    "payload",
    [
        math.inf,
        1e300,
        {1: 2},
        b"x",
        [b"x"],
        AT,
        Line("a", 1),
        NewMessage(1),
        "\0",
        "\\u0000",
        "\ud800",
    ],
    ids=repr,
)
async def test_what_is_not_plain_is_encoded_one_by_one(payload: Any) -> None:
    assert encode_all([1, {"a": [1.5, None]}], 1000) == '[1,{"a":[1.5,null]}]'
    assert encode_all([1, {"a": [1.5, None]}], 10) is None, "of more bytes than fit"
    assert encode_all([1, payload], 1000) is None
    assert encode_all([{"a": 1.5}, {"a": payload}], 1000) is None
    assert encode_all([{"a": "x"}, {"a": payload}], 1000) is None


@SETTINGS
@given(payload=st.binary(max_size=3000))
async def test_all_bytes(client: AsyncClient, payload: bytes) -> None:
    await client.create_queue("q")
    assert await there_and_back(client, payload) == payload


@SETTINGS
@given(number=st.floats(allow_nan=False, allow_infinity=False))
async def test_all_floats(client: AsyncClient, number: float) -> None:
    await client.create_queue("q")
    assert alike(number, await there_and_back(client, number))


@pytest.mark.parametrize(
    "payload",
    [
        *(
            0.1,
            1e16,
            1e22,
            1e23,
            -1.5e300,
            1.7976931348623157e308,
            5e-324,
            2.2250738585072014e-308,
            1.0,
            -1.0,
        ),
        *(2**53 + 1, 2**63, -(2**64), 10**1000, 10**4299),
        *(
            "",
            "e+16",
            '"1e+23"',
            "1e+23",
            "\\u0000",
            "\\",
            '"',
            "\x01\x7f\x80\uffff",
            "💧",
            "e\u0301",
            "\u2028",
        ),
        *([], {}, [[]], {"": ""}, [None], {"a" * 1000: 1}, {"1e+20": [1e20, "1e+20", {"x": -1e20}]}),
        *(True, False, None, [True, 1, 1.0, "1", None]),
    ],
    ids=lambda value: repr(value)[:20],
)
async def test_what_others_lose(client: AsyncClient, payload: Any) -> None:
    await client.create_queue("q")
    assert alike(payload, await there_and_back(client, payload))


async def test_a_tuple_is_a_list(client: AsyncClient) -> None:
    await client.create_queue("q")
    assert await there_and_back(client, {"a": (1, (2,))}) == {"a": [1, [2]]}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\0\xff",
        bytes(range(256)),
        bytearray(b"abc"),
        memoryview(b"abcdef")[::2],
        memoryview(array.array("I", [1, 2])),
        b"\xde\xad" * 1_500_000,
    ],
    ids=["none", "two", "all", "bytearray", "strided", "integers", "3 MB"],
)
async def test_bytes_of_all_kinds(client: AsyncClient, payload: Any, engine18: Engine) -> None:
    await client.create_queue("q")
    (first, second) = await client.send_many("q", [payload, NewMessage(payload, priority=3)])
    messages = await client.consume_batch("q")
    assert [message.id for message in messages] == [first, second]
    assert [message.payload for message in messages] == [bytes(payload)] * 2
    assert engine18.message("q", first).body == bytes(payload)
    assert await there_and_back(client, payload) == bytes(payload)


def nested(depth: int, leaf: Any = None) -> Any:
    value: Any = leaf
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


async def test_nesting_up_to_the_limit(client: AsyncClient) -> None:
    await client.create_queue("q")
    assert await there_and_back(client, nested(500, 1)) == nested(500, 1)
    for depth in (501, 5000, 100_000):
        with pytest.raises(PayloadInvalid, match=r"^payload(\[0\]|\['a'\])+.*deeper than 500"):
            await client.send("q", nested(depth) if depth % 2 == 0 else [nested(depth - 1)])


async def test_results_and_headers_come_back(client: AsyncClient) -> None:
    await client.create_queue("q")
    message_id = await client.send("q", 1, headers={"n": 1e23, "deep": {"x": [None]}})
    message = await client.consume_one("q")
    assert message is not None
    assert message.headers == {"n": 1e23, "deep": {"x": [None]}}
    await message.ack(result=[1e23])
    details = await client.get_message("q", message_id)
    assert details is not None
    assert alike(details.result, [1e23])
    assert alike(details.headers, {"n": 1e23, "deep": {"x": [None]}})


# What cannot be stored


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        (math.nan, r"^payload is nan"),
        ({"a": [1, {"b": math.inf}]}, r"^payload\['a'\]\[1\]\['b'\] is inf"),
        (["x", "a\0b"], r"^payload\[1\] has a NUL character at position 1"),
        ({"k": {"a\0": 1}}, r"^payload\['k'\] has the key 'a\\x00'.*NUL"),
        (["\ud800"], r"^payload\[0\] has half of a surrogate pair at position 0"),
        ({"\udfff": 1}, r"^payload has the key '\\udfff'.*surrogate"),
        ({"a": {1: 2}}, r"^payload\['a'\] has the key 1: keys in JSON are strings"),
        ({None: 1}, r"^payload has the key None"),
        ({True: 1}, r"^payload has the key True"),
        ([{1, 2}], r"^payload\[0\] is a set"),
        ({"a": b"x"}, r"^payload\['a'\] is a bytes.*as the whole payload"),
        ({"a": AT}, r"^payload\['a'\] is a datetime"),
        ([Line("a", 1)], r"^payload\[0\] is a Line"),
        (10**5000, r"^payload is an integer of too many digits"),
        ([1 + 2j], r"^payload\[0\] is a complex"),
        (object(), r"^payload is a object"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_refused_with_the_path(payload: Any, path: str) -> None:
    client = AsyncClient(NOWHERE, retry_for=0)
    attempts: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: client.send("q", payload),
        lambda: client.publish("t", payload),
        lambda: client.send_many("q", [1, payload]),
        lambda: client.send_many("q", [NewMessage(payload)]),
    ]
    for attempt in attempts:
        with pytest.raises(PayloadInvalid, match=path):
            await attempt()
    await client.close()


async def test_a_payload_that_contains_itself() -> None:
    client = AsyncClient(NOWHERE, retry_for=0)
    loop: dict[str, Any] = {"a": []}
    loop["a"].append(loop)
    with pytest.raises(PayloadInvalid, match=r"^payload\['a'\]\[0\] contains itself"):
        await client.send("q", loop)
    await client.close()


async def test_the_same_object_twice_is_no_circle(client: AsyncClient) -> None:
    await client.create_queue("q")
    shared = {"x": 1}
    assert await there_and_back(client, [shared, shared]) == [shared, shared]


async def test_too_large_for_any_queue() -> None:
    client = AsyncClient(NOWHERE, retry_for=0)
    with pytest.raises(PayloadTooLarge, match="256000001 bytes"):
        await client.send("q", bytes(256_000_001))
    await client.close()


async def test_too_large_for_the_queue(client: AsyncClient, engine18: Engine) -> None:
    await client.create_queue("q", max_payload_bytes=1000)
    with engine18.unchanged():
        for payload in ("x" * 2000, b"x" * 1001):
            with pytest.raises(PayloadTooLarge, match="1000"):
                await client.send("q", payload)


# Models


@pytest.mark.parametrize("value", INSTANCES, ids=lambda value: type(value).__name__)
async def test_an_instance_of_a_model(client: AsyncClient, engine18: Engine, value: Any) -> None:
    model = type(value)
    await client.create_queue("q")
    ids = [await client.send("q", value), await client.send("q", value, model=model)]
    ids += await client.send_many("q", [value, NewMessage(value)], model=model)
    stored = [engine18.message("q", message_id).payload for message_id in ids]
    assert stored == [stored[0]] * 4
    assert not isinstance(stored[0], str)
    found = [message.payload async for message in client.consume("q", wait=0, model=model)]
    assert found == [value] * 4
    assert {type(one) for one in found} == {model}


async def test_plain_values_are_checked_against_the_model(client: AsyncClient, engine18: Engine) -> None:
    await client.create_queue("q")
    for model in (Line, Row, Typed):
        await client.send("q", {"article": "a", "count": 2}, model=model)
    await client.send("q", [1, 2], model=list[int])
    await client.send("q", {"orderId": 3}, model=Aliased)
    payloads = [message.payload for message in await client.consume_batch("q")]
    assert payloads == [{"article": "a", "count": 2}] * 3 + [[1, 2], {"orderId": 3}]


WRONG: list[tuple[Any, Any, str]] = [
    (Line, {"article": "a", "count": "many"}, r"does not fit Line: .*\$\.count"),
    (list[Line], [{"article": "a", "count": 1}, {"article": 5, "count": 1}], r"\$\[1\]\.article"),
    (Typed, {"article": "a"}, r"does not fit Typed: .*count"),
    (Row, {"article": "a", "count": "many"}, r"does not fit Row: [\s\S]*count"),
    (Model, {"id": str(NUMBER)}, r"does not fit Model: [\s\S]*lines"),
    (int, "5", r"does not fit int"),
    (Money(), "5 USD", r"does not fit .*Money"),
]


@pytest.mark.parametrize(("model", "wrong", "path"), WRONG)
async def test_what_does_not_fit_is_refused_on_both_ends(
    client: AsyncClient, engine18: Engine, model: Any, wrong: Any, path: str
) -> None:
    engine18.queue("q")
    with engine18.unchanged():
        with pytest.raises(PayloadInvalid, match=path):
            await client.send("q", wrong, model=model)
        with pytest.raises(PayloadInvalid, match=path):
            await client.send_many("q", [wrong], model=model)
    engine18.send("q", wrong)
    (message,) = await client.consume_batch("q", model=model)
    for _ in range(2):
        with pytest.raises(PayloadInvalid, match=path):
            _ = message.payload
    await message.ack()


async def test_a_dataclass_that_holds_something_else_is_refused(client: AsyncClient) -> None:
    with pytest.raises(PayloadInvalid, match=r"does not fit Line: .*\$\.count"):
        await client.send("q", Line("a", "many"))  # type: ignore[arg-type]
    with pytest.raises(PayloadInvalid, match=r"does not fit Order: .*\$\.lines\[1\]\.count"):
        lines = [Line("a", 1), Line("b", None)]  # type: ignore[arg-type]
        await client.send("q", Order(NUMBER, AT, Decimal(1), "red", lines))  # type: ignore[arg-type]
    with pytest.raises(PayloadInvalid, match=r"payload\['article'\] has a NUL"):
        await client.send("q", Line("a\0", 1))


async def test_a_codec_of_our_own(client: AsyncClient, engine18: Engine) -> None:
    await client.create_queue("q")
    first = await client.send("q", Decimal("1.10"), model=Money())
    second = await client.send("q", {"a": [1]}, model=Zipped())
    assert engine18.message("q", first).payload == "1.10 EUR"
    assert engine18.message("q", second).body == Zipped().encode({"a": [1]})
    money = await client.consume_one("q", model=Money())
    zipped = await client.consume_one("q", model=Zipped())
    assert money is not None
    assert zipped is not None
    assert (money.payload, zipped.payload) == (Decimal("1.10"), {"a": [1]})
    with pytest.raises(PayloadInvalid, match="no money"):
        await client.send("q", 5, model=Money())


async def test_the_codec_of_a_client(client: AsyncClient, database18: str) -> None:
    await client.create_queue("q")
    async with AsyncClient(database18, codec=Zipped()) as zipping:
        await zipping.send("q", {"a": 1})
        await zipping.send_many("q", [2, NewMessage(3)])
        async with zipping.transaction() as transaction:
            await transaction.send("q", 4)
        async with client.transaction() as transaction:
            await transaction.send("q", 5)
        found = await zipping.consume_batch("q")
        assert [message.payload for message in found[:4]] == [{"a": 1}, 2, 3, 4]
        with pytest.raises(PayloadInvalid, match="not zipped: 5"):
            _ = found[4].payload
        await zipping.send("q", 6, model=int)
        (plain,) = await zipping.consume_batch("q", model=int)
        assert plain.payload == 6


async def test_a_payload_is_read_once(client: AsyncClient) -> None:
    await client.create_queue("q")
    await client.send("q", {"a": 1})
    message = await client.consume_one("q")
    assert message is not None
    assert message.payload is message.payload


# What another program has stored


async def test_what_does_not_fit_is_nacked_and_the_others_go_on(
    client: AsyncClient, engine18: Engine
) -> None:
    engine18.queue("q", max_delivery_attempts=1)
    good = {"article": "a", "count": 1}
    ids = engine18.send_many("q", [good, {"article": "a"}, good])
    read = []
    async for message in client.consume("q", wait=0, model=Line):
        async with message:
            read.append(message.payload)
    assert read == [Line("a", 1), Line("a", 1)]
    assert engine18.states("q") == {ids[0]: "done", ids[1]: "dead", ids[2]: "done"}
    assert "PayloadInvalid: the payload does not fit Line" in engine18.message("q", ids[1]).last_error


@pytest.mark.parametrize("text", ["1" * 5000, "[" * 5000 + "]" * 5000], ids=["digits", "depth"])
async def test_what_python_cannot_read(client: AsyncClient, engine18: Engine, text: str) -> None:
    engine18.queue("q")
    for payload in (text, "1"):
        engine18.value("send_message", "q", Jsonb(payload, dumps=str))
    read: list[AsyncMessage[Any]] = []
    async for message in client.consume("q", wait=0):
        read.append(message)
    assert len(read) == 2
    with pytest.raises(PayloadInvalid):
        _ = read[0].payload
    assert read[1].payload == 1


async def test_the_whole_of_it_is_text_as_sql_sees_it(client: AsyncClient, engine18: Engine) -> None:
    """Strings with all that is special to JSON, arrays, and drivers, in bulk and alone."""
    engine18.queue("q")
    special = [
        'a"b',
        "a\\b",
        "{a,b}",
        "NULL",
        "null",
        "%s %% %(x)s $1",
        "\n\t\r",
        "'",
        "''",
        "\\x00",
        "{}",
        "",
    ]
    ids = [await client.send("q", text) for text in special] + await client.send_many("q", special)
    assert [engine18.message("q", message_id).payload for message_id in ids] == special * 2
    options: dict[str, Any] = {"tenant": "a\"b\\{,}'%s NULL", "dedup_key": "null"}
    first = await client.send("q", 1, **options, headers=dict.fromkeys(special, special))
    row = engine18.message("q", first)
    assert (row.tenant, row.dedup_key) == (options["tenant"], "null")
    (second,) = await client.send_many("q", [NewMessage(1, **{**options, "dedup_key": "NULL"})])
    row = engine18.message("q", second)
    assert (row.tenant, row.dedup_key) == (options["tenant"], "NULL")
    assert json.loads(json.dumps(row.headers or {})) == {}
