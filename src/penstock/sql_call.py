"""How a call of a function becomes SQL: text with `%s` for each parameter, and the parameters.

Parameters travel as text or bytes and are cast by the server; what comes back is text, numbers, booleans and
bytes. So it does not matter which driver carries a call, nor how it is set up to treat JSON or time zones.

Every type, function and operator is qualified. The owner of a database can set a search path for all sessions
in it, and objects of the owner must not replace those of PostgreSQL.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from .errors import InvalidArgument
from .sql_parameters import OWN_TYPES, REQUIRED, TYPES
from .values import flag
from .wording import shown

__all__ = [
    "NULL",
    "PAYLOAD_AS_TEXT",
    "Call",
    "Parameter",
    "Repeat",
    "Row",
    "array",
    "call",
    "call_with",
    "json_array",
    "numbered",
    "with_own_json",
]

T = TypeVar("T")

Parameter: TypeAlias = "str | bytes | None"
Row: TypeAlias = Sequence[Any]

# For a parameter that has no default: None leaves an argument out.
NULL: Final = object()


class Repeat(Enum):
    """What to do where the connection was lost, and the call may have taken effect or not."""

    SAFE = "call again: twice does no more than once"
    DOUBTFUL = "call again, but if that finds nothing to do, the first one may have done it"
    NEVER = "raise the error in the caller"


class Call(msgspec.Struct, Generic[T], frozen=True):
    """One call of one function. A struct, because that is made in a tenth of the time of a dataclass."""

    function: str
    text: str
    parameters: tuple[Parameter, ...]
    parse: Callable[[Sequence[Row]], T]
    repeat: Repeat
    # What to call where the server could not send the answer; then this one again.
    remedy: Callable[[], Call[Any]] | None = None
    # How long the server may be silent over it beyond call_timeout: it waits for locks, or has much to do.
    may_take: float = 0.0
    # A later answer is of no use, even where call_timeout is longer.
    within: float = math.inf
    # The parameters have so many bytes that a thread should send them, and no statement be prepared for them.
    is_large: bool = False

    def silence_limit(self, call_timeout: float | None) -> float | None:
        """For how long the server may be silent; None: for ever."""
        if call_timeout is None or (self.within == math.inf and not self.may_take):
            return call_timeout
        limit = min(call_timeout + self.may_take, self.within)
        return None if limit == math.inf else limit

    def taking(self, seconds: float) -> Call[T]:
        """The same call, over which the server may be silent for so much longer."""
        return msgspec.structs.replace(self, may_take=seconds)

    def as_large(self) -> Call[T]:
        """The same call, whose parameters have many bytes."""
        return msgspec.structs.replace(self, is_large=True)


# What an argument is called in Python, where that is another name.
SPOKEN = {
    "consumer_token": "token",
    "deadline_ms": "deadline",
    "dedup_keys": "dedup_key",
    "delays": "delay",
    "errors": "error",
    "extension_seconds": "extension",
    "keep_alive_seconds": "keep_alive",
    "priorities": "priority",
    "queue_right": "right",
    "tenants": "tenant",
    "vt_seconds": "visibility_timeout",
}

# Types that are words of SQL: they are never looked up in the search path.
KEYWORDS = frozenset({"bigint", "boolean", "double precision", "integer"})

# An array with nulls: how NULL is read in an array literal is a setting of the session (array_nulls).
FROM_JSON = (
    "array(select cast(pg_catalog.json_array_elements_text("
    "cast(cast(%s as pg_catalog.text) as pg_catalog.json)) as {element}))"
)
AS_JSON = " as json"

JSON_FROM_TEXT = "cast(cast(%s as pg_catalog.text) as pg_catalog.jsonb)"
PAYLOAD_AS_TEXT = "cast(payload as pg_catalog.text)"

# Arguments that are no parameters of a function: the server works out what the parameter gets. Delays, since
# its clock tells which moment is meant; JSON documents in one, since that is quicker than an array of them.
EXPRESSIONS = {
    "patient_token": (
        # How long to wait for a lock, set before the function begins, until the transaction ends.
        "token",
        "cast(%s as pg_catalog.text) operator(pg_catalog.||)"
        " pg_catalog.left(pg_catalog.set_config('lock_timeout', %s, true), 0)",
    ),
    "same_token": (
        # One token for so many messages.
        "tokens",
        "pg_catalog.array_fill("
        "cast(%s as pg_catalog.text), array[cast(cast(%s as pg_catalog.text) as integer)])",
    ),
    "documents": (
        "payloads",
        f"array(select pg_catalog.jsonb_array_elements({JSON_FROM_TEXT}))",
    ),
    "delay": (
        "deliver_after",
        "penstock.clock() operator(pg_catalog.+)"
        " pg_catalog.make_interval(secs => cast(cast(%s as pg_catalog.text) as double precision))",
    ),
    "deliver_delays": (
        "deliver_afters",
        "array(select coalesce(d.at,"
        " penstock.clock() operator(pg_catalog.+) pg_catalog.make_interval(secs => d.secs))"
        f" from rows from (pg_catalog.unnest({FROM_JSON.format(element='pg_catalog.timestamptz')}),"
        f" pg_catalog.unnest({FROM_JSON.format(element='double precision')}))"
        " with ordinality as d(at, secs, n) order by d.n)",
    ),
}


def call(
    function: str,
    parse: Callable[[Sequence[Row]], T],
    columns: str = "*",
    repeat: Repeat = Repeat.SAFE,
    /,
    **arguments: Any,
) -> Call[T]:
    """A call with the arguments that are not None; for the others the function has its defaults."""
    return call_with(function, parse, columns, repeat, arguments)


def call_with(
    function: str,
    parse: Callable[[Sequence[Row]], T],
    columns: str,
    repeat: Repeat,
    arguments: dict[str, Any],
) -> Call[T]:
    """As call(), for a caller that has the arguments in a dict."""
    names, parameters = list[str](), list[Parameter]()
    for name, value in arguments.items():
        if value is None:
            if name in REQUIRED.get(function, ()):
                raise InvalidArgument(f"{SPOKEN.get(name, name)} must be given, not None")
            continue
        if value is NULL:
            names.append(f"{name} => null")
            continue
        dump, spoken = _dumper(function, name)
        if dump is None:
            names.append(name)
            parameters += value
            continue
        parameter = dump(spoken, value)
        if type(parameter) is _Json:
            names.append(name + AS_JSON)
            parameters.append(str(parameter))
        else:
            names.append(name)
            parameters.append(parameter)
    return Call(function, _text(function, tuple(names), columns), tuple(parameters), parse, repeat)


@lru_cache(maxsize=1024)
def numbered(text: str) -> str:
    """The text of a call with $1, $2, ... for its parameters."""
    first, *rest = text.split("%s")
    return first + "".join(f"${number}{part}" for number, part in enumerate(rest, start=1))


@lru_cache(maxsize=1024)
def with_own_json(text: str) -> str:
    """The text of a call, for a driver that sends text as jsonb and returns jsonb as text."""
    return text.replace(JSON_FROM_TEXT, "cast(%s as pg_catalog.jsonb)").replace(PAYLOAD_AS_TEXT, "payload")


class _Json(str):
    """The elements of an array as JSON."""

    __slots__ = ()


def json_array(elements: Iterable[str | None]) -> str:
    """The elements of an array, some of them null, for an expression that takes JSON."""
    return json.dumps(list(elements), ensure_ascii=False)


def array(elements: Iterable[str]) -> str:
    """An array of text, as PostgreSQL reads it."""
    quoted = ['"' + element.replace("\\", "\\\\").replace('"', '\\"') + '"' for element in elements]
    return "{" + ",".join(quoted) + "}"


@lru_cache(maxsize=1024)
def _text(function: str, names: tuple[str, ...], columns: str) -> str:
    arguments = ", ".join(_argument(function, name) for name in names)
    return f"select {columns} from penstock.{function}({arguments})"


@lru_cache(maxsize=1024)
def _dumper(function: str, name: str) -> tuple[Callable[[str, Any], Parameter] | None, str]:
    """How an argument is sent, and what it is called in errors. None: the parameters of an expression."""
    if name in EXPRESSIONS:
        return None, name
    return _DUMPERS[_type(function, name)], SPOKEN.get(name, name)


def _argument(function: str, name: str) -> str:
    if name.endswith(" => null"):
        return name
    if name in EXPRESSIONS:
        parameter, expression = EXPRESSIONS[name]
        return f"{parameter} => {expression}"
    if name.endswith(AS_JSON):
        name = name.removesuffix(AS_JSON)
        element = _type(function, name).removesuffix("[]")
        return f"{name} => {FROM_JSON.format(element=_qualified(element))}"
    type_name = _type(function, name)
    given = "%s" if type_name in ("text", "bytea") else "cast(%s as pg_catalog.text)"
    return f"{name} => cast({given} as {_qualified(type_name)})"


def _type(function: str, parameter: str) -> str:
    return OWN_TYPES.get((function, parameter)) or TYPES[parameter]


def _qualified(type_name: str) -> str:
    """A type as it stands in a statement. The grammar itself knows the types that are keywords."""
    return type_name if type_name.removesuffix("[]") in KEYWORDS else f"pg_catalog.{type_name}"


def _dump_text(name: str, value: Any) -> str:
    if type(value) is str and value.isascii() and "\0" not in value:
        return value
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} must be a string, not {shown(value)}")
    if "\0" in value:
        raise InvalidArgument(f"{name} must not have a NUL character: {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"{name} must be text, without half of a surrogate pair: {shown(value)}"
        ) from None
    return value


def _dump_integer(bits: int) -> Callable[[str, Any], str]:
    smallest, largest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def dump(name: str, value: Any) -> str:
        if type(value) is int and smallest <= value <= largest:
            return str(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgument(f"{name} must be an integer, not {shown(value)}")
        if not smallest <= value <= largest:
            raise InvalidArgument(f"{name} must be an integer of {bits} bits, not {shown(value)}")
        return str(int(value))

    return dump


def _dump_double(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(f"{name} must be a number, not {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidArgument(f"{name} must be a number of reasonable size, not {shown(value)}")
    return repr(number)


def _dump_boolean(name: str, value: Any) -> str:
    return str(flag(name, value)).lower()


def _dump_array(dump: Callable[[str, Any], str]) -> Callable[[str, Any], str]:
    def dump_all(name: str, value: Any) -> str:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise InvalidArgument(f"{name} must be a sequence, not {shown(value)}")
        if None in value:
            return _Json(json_array(None if element is None else dump(name, element) for element in value))
        return array(dump(name, element) for element in value)

    return dump_all


def _dump_integers(bits: int) -> Callable[[str, Any], str]:
    dump_all = _dump_array(_dump_integer(bits))
    smallest, largest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def dump(name: str, value: Any) -> str:
        # Nothing but integers, as ids are: no need to look at them one by one, nor to quote them.
        if (
            type(value) is list
            and set(map(type, value)) == {int}
            and smallest <= min(value) <= max(value) <= largest
        ):
            return "{" + ",".join(map(str, value)) + "}"
        return dump_all(name, value)

    return dump


def _as_is(_name: str, value: Any) -> Any:
    """Made by this package: JSON as text, a moment as text, bytes."""
    return value


def _hexadecimal(_name: str, value: bytes) -> str:
    return f"\\x{value.hex()}"


_DUMPERS: dict[str, Callable[[str, Any], Parameter]] = {
    "bigint": _dump_integer(64),
    "bigint[]": _dump_integers(64),
    "boolean": _dump_boolean,
    "bytea": _as_is,
    "bytea[]": _dump_array(_hexadecimal),
    "double precision": _dump_double,
    "integer": _dump_integer(32),
    "integer[]": _dump_integers(32),
    "jsonb": _as_is,
    "jsonb[]": _dump_array(_as_is),
    "text": _dump_text,
    "text[]": _dump_array(_dump_text),
    "timestamptz": _as_is,
    "timestamptz[]": _dump_array(_as_is),
}
