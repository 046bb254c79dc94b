"""Models of payloads of every kind that the clients know, and codecs of our own."""

from __future__ import annotations

import enum
import json
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pydantic
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
NUMBER = UUID("12345678-1234-5678-1234-567812345678")


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Line:
    article: str
    count: int


@dataclass
class Order:
    """A dataclass, which does not look at what it is given."""

    id: UUID
    at: datetime
    total: Decimal
    colour: Colour
    lines: list[Line]
    tags: set[str] = field(default_factory=set)
    by_number: dict[int, str] = field(default_factory=dict)
    note: str | None = None


class Struct(msgspec.Struct):
    id: UUID
    at: datetime
    total: Decimal
    lines: list[Line]


class Tagged(msgspec.Struct, tag=True, forbid_unknown_fields=True, rename="camel"):
    order_id: int


class Row(pydantic.BaseModel):
    article: str
    count: int


class Model(pydantic.BaseModel):
    id: UUID
    at: datetime
    total: Decimal
    lines: list[Row]


class Aliased(pydantic.BaseModel):
    """With names for JSON, a field that is computed, and no patience for others."""

    model_config = pydantic.ConfigDict(extra="forbid")

    order_id: int = pydantic.Field(alias="orderId")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.order_id


class Strict(pydantic.BaseModel):
    """Strict: a datetime in JSON is text nevertheless."""

    model_config = pydantic.ConfigDict(strict=True)

    id: UUID
    at: datetime
    colour: Colour
    pair: tuple[int, int]


class Root(pydantic.RootModel[list[int]]):
    pass


@pydantic_dataclass
class Point:
    x: int
    at: datetime


class Typed(TypedDict):
    article: str
    count: int


LINES = [Line("a", 1), Line("ü", 2)]

INSTANCES: list[Any] = [
    Order(NUMBER, AT, Decimal("1.10"), Colour.RED, LINES, {"x", "y"}, {1: "one"}),
    Line("a", 2**70),
    Struct(NUMBER, AT, Decimal("1.10"), LINES),
    Tagged(5),
    Model(id=NUMBER, at=AT, total=Decimal("1.10"), lines=[Row(article="a", count=1)]),
    Aliased(orderId=5),
    Strict(id=NUMBER, at=AT, colour=Colour.RED, pair=(1, 2)),
    Root([1, 2]),
    Point(1, AT),
]


class Zipped:
    """A codec to bytes."""

    def encode(self, value: Any) -> bytes:
        return zlib.compress(json.dumps(value).encode())

    def decode(self, stored: Any) -> Any:
        if not isinstance(stored, bytes):
            raise ValueError(f"not zipped: {stored!r}")
        return json.loads(zlib.decompress(stored))


class Money:
    """A codec to JSON."""

    def encode(self, value: Decimal) -> str:
        if not isinstance(value, Decimal):
            raise TypeError("no money")
        return f"{value} EUR"

    def decode(self, stored: Any) -> Decimal:
        amount, currency = stored.split()
        if currency != "EUR":
            raise ValueError(f"{currency} is not taken here")
        return Decimal(amount)
