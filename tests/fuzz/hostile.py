"""Hostile values of each type that a function takes, as SQL expressions: some are too large to send."""

from __future__ import annotations

# Arrays so long that what they did is better undone at once.
HUGE = {"100,000", "100,000 nulls", "100,000 numbers", "100,000 far apart"}

INTEGERS = ["null", "0", "1", "-1", "2", "3", "4", "255", "10001", "100001", "2147483647", "-2147483648"]
TEXTS = {
    "null": "null",
    "empty": "''",
    "a space": "' '",
    "255 characters": "repeat('x', 255)",
    "256 characters": "repeat('x', 256)",
    "255 of four bytes": "repeat('😀', 255)",
    "500 characters": "repeat('y', 500)",
    "501 characters": "repeat('y', 501)",
    "10,000 that do not compress": "(select string_agg(md5(i::text), '') from generate_series(1, 313) i)",
    "a megabyte": "repeat('x', 1000000)",
    "quotes": "E'\\'\\'\"\"\\''",
    "backslashes": "E'\\\\ \\\\n \\\\x00 \\\\'",
    "format specifiers": "'%s %I %L %1$s %% %'",
    "dollar quotes": "'$$ $1 $penstock$'",
    "control characters": "E'\\x01\\x07\\b\\t\\r\\n\\x1b[2J\\x7f'",
    "emoji": "'👩‍👩‍👧‍👦'",
    "right to left": "E'\\u202e\\u05d0\\u05d1\\u200f'",
    "no characters": "E'\\ufeff\\u200b\\u0301'",
    "an injection": "'x''); drop schema penstock cascade; --'",
    "an array": "'{a,NULL,\"b\"}'",
    "a row": "'(1,2,)'",
    "null in letters": "'NULL'",
    "a temporary schema": "'pg_temp.queues'",
    "a table": "'penstock.queues'",
    "a number": "'-1'",
    "a large number": "'99999999999999999999'",
    "a cursor": "'active 999999999999999999'",
    "a cursor of ready": "'ready 3 999999999999999999 999999999999999999'",
    "a cursor of dead letters": "'999999999:999999999999999999'",
    "a cursor by time": "'newest 999999999999999999 999999999999999999 999999999'",
    "a state": "'waiting'",
    "a breakdown": "'tenant'",
    "another breakdown": "'priority'",
}
DEEP = "repeat('[', 1000) || repeat(']', 1000)"
DOCUMENTS = {
    "null": "null",
    "JSON null": "'null'",
    "true": "'true'",
    "a number": "'-0.0'",
    "a huge number": "('1' || repeat('0', 1000))::jsonb",
    "a tiny number": "'1e-1000'",
    "more than a double": "'1e400'",
    "an empty string": "'\"\"'",
    "a string": "'\"%s \\\\u202e 😀\"'",
    "no elements": "'[]'",
    "no fields": "'{}'",
    "an empty field": "'{\"\": null}'",
    "a nested object": '\'{"a": {"b": [1, null, {"c": ""}]}}\'',
    "an array": "'[1, \"two\", null]'",
    "deep": f"({DEEP})::jsonb",
    "long": "jsonb_build_object('text', repeat('x', 20000))",
    "wide": "(select jsonb_object_agg(i, i) from generate_series(1, 10000) i)",
}
DOUBLES = ["0", "-0", "1", "-1", "100", "100.1", "5e-324", "1e308", "-1e308", "NaN", "Infinity", "-Infinity"]
MOMENTS = [
    "infinity",
    "-infinity",
    "epoch",
    "4714-11-24 00:00:00+00 BC",
    "0001-01-01 00:00+00",
    "9999-12-31 23:59:59.999999+00",
    "10000-01-01 00:00+00",
    "200000-01-01 00:00+00",
    "294276-12-31 23:59:59.999999+00",
]
SCALARS: dict[str, dict[str, str]] = {
    "integer": {text: text for text in INTEGERS},
    "bigint": {
        text: text for text in [*INTEGERS, "4294967296", "9223372036854775807", "-9223372036854775808"]
    },
    "double precision": {"null": "null", **{text: f"'{text}'::float8" for text in DOUBLES}},
    "timestamp with time zone": {"null": "null", **{text: f"'{text}'::timestamptz" for text in MOMENTS}},
    "boolean": {text: text for text in ["null", "true", "false"]},
    "text": TEXTS,
    "jsonb": DOCUMENTS,
    "bytea": {
        "null": "null",
        "empty": "''",
        "NUL": "'\\x00'",
        "every byte": "(select string_agg(set_byte('\\x00', 0, i), '') from generate_series(0, 255) i)",
        "long": "decode(repeat('00', 20000), 'hex')",
    },
}


def hostile_values(type_name: str, usual: str) -> dict[str, str]:
    """By what each is called; `usual`: a value that the argument may well have, or an array of two."""
    if not type_name.endswith("[]"):
        return SCALARS[type_name]
    element = type_name.removesuffix("[]")
    array = f"({usual})::{type_name}"
    first = f"({array})[1]"
    values = {
        "null": "null",
        "no elements": "'{}'",
        "a null": f"array[null]::{type_name}",
        "two nulls": f"array[null, null]::{type_name}",
        "the first is null": f"array[null, {first}]",
        "the second is null": f"array[{first}, null]",
        "one": f"array[{first}]",
        "twice the same": f"array[{first}, {first}]",
        "three": f"{array} || {first}",
        "from 0 on": f"array_fill({first}, array[2], array[0])",
        "from -5 on": f"array_fill({first}, array[2], array[-5])",
        "up to the last subscript": f"array_fill({first}, array[2], array[2147483645])",
        "one in two dimensions": f"array_fill({first}, array[1, 1])",
        "two in two dimensions": f"array[{array}]",
        "two rows": f"array_fill({first}, array[2, 1])",
        "two rows from 0 on": f"array_fill({first}, array[2, 1], array[0, 0])",
        "nulls in two dimensions": f"array_fill(null::{element}, array[2, 2])",
        "six dimensions": f"array_fill({first}, array[1, 1, 1, 1, 1, 2])",
        "100,000": f"array_fill({first}, array[100000])",
        "100,000 nulls": f"array_fill(null::{element}, array[100000])",
    }
    if element in ("integer", "bigint"):
        values["100,000 numbers"] = f"(select array_agg(i::{element}) from generate_series(1, 100000) i)"
        values["far apart"] = f"array[-2147483648, 2147483647]::{type_name}"
    if element == "bigint":
        values["as far apart as can be"] = "array[-9223372036854775808, 9223372036854775807]::bigint[]"
        values["100,000 far apart"] = "(select array_agg(i::bigint * 1000) from generate_series(1, 100000) i)"
    # At the first place or at the last, in turn.
    for place, (name, value) in enumerate(SCALARS[element].items()):
        if value != "null":
            two = [f"({value})::{element}", first] if place % 2 else [first, f"({value})::{element}"]
            values[name] = f"array[{', '.join(two)}]"
    return values
