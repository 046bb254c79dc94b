"""Types that arguments of tasks can have, with values of each."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import msgspec
import pydantic

T = TypeVar("T")

MOMENT = datetime(2026, 2, 3, 4, 5, 6, 789012)
RIGA = ZoneInfo("Europe/Riga")
KEY = uuid.UUID("12345678-1234-5678-1234-567812345678")


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Mode(enum.StrEnum):
    FAST = "fast"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.5


@dataclasses.dataclass
class Polygon:
    points: list[Point]
    made_at: datetime
    colour: Colour = Colour.RED
    tags: set[str] = dataclasses.field(default_factory=set)
    centre: Point | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class Private:
    _secret: int
    _kept: str = "no"


@dataclasses.dataclass
class Derived:
    width: int
    area: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.area = self.width**2


@dataclasses.dataclass
class Box(Generic[T]):
    content: T


class Address(pydantic.BaseModel):
    street: str
    zip_code: str = pydantic.Field(alias="zipCode", default="LV-1010")


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    name: str
    born: date
    addresses: list[Address] = []
    id: uuid.UUID = KEY
    balance: Decimal = Decimal("0.00")


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"
    barks: bool = True


class Pets(pydantic.RootModel[list[Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]]]):
    pass


class Struct(msgspec.Struct):
    a: int
    at: datetime | None = None


class Tagged(msgspec.Struct, tag=True):
    a: int


class OtherTagged(msgspec.Struct, tag=True):
    a: int


class Options(TypedDict):
    depth: int
    since: NotRequired[datetime]


class Pair(NamedTuple):
    left: int
    right: date


# Each annotation with values that come back as what they were.
GOOD: list[tuple[Any, Sequence[Any]]] = [
    (int, [0, -1, 2**31, 2**63, 2**70, -(2**70), 10**400]),
    (float, [0.0, 1.5, -1e-7, 1e16, 1e22, 1e23, -1e23, 5e-324, 1.7976931348623157e308, 0.1 + 0.2]),
    (bool, [True, False]),
    (str, ["", "plain", "ünï ćødé 名 𝄞", "\u2028\x7f\x01", "\\u0000", '"quoted"\n', "a" * 100_000]),
    (bytes, [b"", b"\x00\xff\x80", bytes(range(256))]),
    (bytearray, [bytearray(b"abc")]),
    (datetime, [MOMENT, MOMENT.replace(tzinfo=UTC), MOMENT.replace(tzinfo=RIGA), datetime.min, datetime.max]),
    (datetime, [MOMENT.replace(tzinfo=timezone(timedelta(hours=-9, minutes=-30)))]),
    (date, [date(2026, 2, 3), date.min, date.max]),
    (time, [time(1, 2, 3, 4), time(1, 2, tzinfo=UTC)]),
    (timedelta, [timedelta(0), timedelta(1, 2, 3), -timedelta(1, 2, 3), timedelta.max, timedelta.min]),
    (uuid.UUID, [KEY, uuid.UUID(int=0)]),
    (Decimal, [Decimal("1.10"), Decimal("-0"), Decimal("1e400"), Decimal(2) / Decimal(3)]),
    (Colour, [Colour.GREEN]),
    (Size, [Size.LARGE]),
    (Mode, [Mode.FAST]),
    (Rights, [Rights.READ, Rights.READ | Rights.WRITE]),
    (None, [None]),
    (list[int], [[], [1, 2, 2**70]]),
    (set[int], [set(), {1, 2}]),
    (frozenset[str], [frozenset({"a"})]),
    (tuple[int, str], [(1, "a")]),
    (tuple[datetime, ...], [(), (MOMENT, MOMENT)]),
    (set[tuple[int, date]], [{(1, date(2026, 1, 1))}]),
    (set[Colour], [set(Colour)]),
    (set[Point], [{Point(1), Point(2)}]),
    (set[int | None], [{None, 1}]),
    (frozenset[frozenset[int]], [frozenset({frozenset({1}), frozenset({2, 3})})]),
    (Sequence[Decimal], [[Decimal("1.0")]]),
    (Mapping[str, bytes], [{"a": b"\x00"}]),
    (dict[str, Any], [{}, {"a": [1, None, {"b": 1.5}]}]),
    (dict[int, str], [{1: "a", -5: "b"}]),
    (dict[uuid.UUID, date], [{KEY: date(2026, 1, 1)}]),
    (dict[date, set[int]], [{date(2026, 1, 1): {1}}]),
    (dict[Colour, int], [{Colour.RED: 1}]),
    (int | None, [None, 5]),
    (int | str | None, [1, "1", None]),
    (datetime | None, [MOMENT, None]),
    (uuid.UUID | int, [KEY, 7]),
    (Literal["a", "b", 3, None], ["a", 3, None]),
    (Annotated[int, msgspec.Meta(gt=0)], [1]),
    (Annotated[Point, "a remark"], [Point(1)]),
    (Options, [{"depth": 1}, {"depth": 1, "since": MOMENT}]),
    (Pair, [Pair(1, date(2026, 1, 1))]),
    (Point, [Point(1), Point(-(2**70), 1e23)]),
    (
        Polygon,
        [Polygon([Point(1), Point(2, 3.5)], MOMENT), Polygon([], MOMENT, Colour.GREEN, {"a"}, Point(0))],
    ),
    (Private, [Private(_secret=1), Private(_secret=2, _kept="yes")]),
    (Derived, [Derived(4)]),
    (Box[datetime], [Box(MOMENT)]),
    (list[Point] | None, [None, [Point(1)]]),
    (dict[str, list[Polygon]], [{"a": [Polygon([Point(1)], MOMENT)]}]),
    (Struct, [Struct(1), Struct(2**64, MOMENT)]),
    (Tagged | OtherTagged, [Tagged(1), OtherTagged(1)]),
    (Address, [Address(street="Brīvības", zipCode="LV-1001"), Address(street="")]),
    (Person, [Person(name="Anna", born=date(2000, 1, 1), addresses=[Address(street="x")])]),
    (
        list[Person],
        [[], [Person(name="A", born=date.min, balance=Decimal("1.10")), Person(name="B", born=date.max)]],
    ),
    (Person | None, [None, Person(name="A", born=date.min)]),
    (dict[str, Address], [{"home": Address(street="x")}]),
    (Pets, [Pets([Cat(), Dog(barks=False)])]),
    (Box[Person], [Box(Person(name="A", born=date.min))]),
]

# Each annotation with values that do not fit it.
BAD: list[tuple[Any, Sequence[Any]]] = [
    (int, ["1", 1.5, 1.0, True, None, b"1", Decimal(1), [1]]),
    (float, ["1", None, True, Decimal("1.5"), float("nan"), float("inf")]),
    (bool, [1, 0, "true", None]),
    (str, [1, None, b"abc", MOMENT, KEY, Decimal(1), Colour.RED, timedelta(1), ["a"]]),
    (str, ["a\0b", "\ud800"]),
    (bytes, ["abc", 5, None]),
    (datetime, [5, "tomorrow", None, date(2026, 1, 1)]),
    (date, [MOMENT, 5, "x"]),
    (timedelta, ["x", None]),
    (uuid.UUID, ["x", 5]),
    (Decimal, ["x", None]),
    (Colour, ["blue", Size.SMALL, None]),
    (Size, [3, "SMALL"]),
    (list[int], ["abc", 5, ["1"], [None], {1: 2}]),
    (list[str], [[b"x"], ["a\0"], [KEY]]),
    (set[int], [{"a"}, 5]),
    (tuple[int, str], [(1,), (1, "a", 2), ("a", 1)]),
    (dict[str, int], [{"a": "b"}, {1: 2}, [], {"\0": 1}]),
    (dict[int, str], [{"x": "a"}, {1: 2}]),
    (int | None, ["1", 1.5]),
    (Literal["a", 3], ["b", 4, None]),
    (Annotated[int, msgspec.Meta(gt=0)], [0]),
    (Options, [{}, {"depth": "x"}]),
    (Point, [5, {}, {"x": "1"}, Point("1"), Address(street="x")]),  # type: ignore[arg-type]
    (Polygon, [Polygon([5], MOMENT)]),  # type: ignore[list-item]
    (Struct, [{"a": "x"}, Point(1)]),
    (Person, [5, {"name": "A"}, Address(street="x")]),
    (list[Person], [[5]]),
    (dict[str, Any], [{"a": MOMENT}, {"a": {1: 2}}, {"a": {1, 2}}, {"a": b"x"}, {1: 2}]),
    (list, [[MOMENT], [{1}], {Point(1)}, [b"x"]]),
    (dict, [{1: 2}, {"a": Point(1)}]),
    (complex, [1j]),
]
