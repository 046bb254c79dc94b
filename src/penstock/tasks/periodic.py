"""When a periodic task is due: cron expressions in a time zone, intervals, and missed times."""

from __future__ import annotations

import zoneinfo
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, Final

from cronsim import CronSim, CronSimError

from penstock.errors import InvalidArgument
from penstock.models import SCHEDULE_GRACE, Missed
from penstock.payloads import Json
from penstock.values import Duration, interval

__all__ = ["MOST_TICKS", "Cron", "Every", "Missed", "Periodic", "Times", "times_of"]

# At most so many missed times are made up for, the newest ones.
MOST_TICKS: Final = 1000
# The shortest interval, because each time costs a transaction.
SHORTEST_SECONDS: Final = 0.1

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SECOND: Final = timedelta(seconds=1)
MICROSECOND: Final = timedelta(microseconds=1)

ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class Times(ABC):
    """An endless sequence of times, the same in every process."""

    @abstractmethod
    def next_after(self, moment: datetime) -> datetime:
        """The first time later than a moment, in UTC."""

    @abstractmethod
    def newest(self, after: datetime, until: datetime, most: int) -> list[datetime]:
        """The times after one moment, up to and including another, in order; only the last `most` of them."""

    @abstractmethod
    def definition(self) -> dict[str, Json]:
        """The definition to store. Two schedules with different definitions are due at different times."""

    def due(
        self, next_at: datetime, now: datetime, missed: Missed, *, grace: timedelta = SCHEDULE_GRACE
    ) -> tuple[list[datetime], datetime]:
        """The times to act for now, and the next time to wait for.

        next_at: the first time that no worker has acted for. missed: "skip" acts for the newest time that has
        come, unless it is late by more than `grace`; "one" acts for it in any case; "all" for each.
        """
        next_at, now = _utc("next_at", next_at), _utc("now", now)
        if now < next_at:
            return [], next_at
        # next_at counts also if it is none of these times: an operator may have moved it.
        ticks = [next_at, *self.newest(next_at, now, MOST_TICKS if missed == "all" else 1)]
        if missed != "all":
            ticks = ticks[-1:]
        if missed == "skip" and now - ticks[-1] > grace:
            ticks = []
        return ticks[-MOST_TICKS:], self.next_after(now)


@dataclass(frozen=True, slots=True)
class Every(Times):
    """Every so many seconds, counted from 1970-01-01 00:00 UTC, so that all workers agree."""

    seconds: Duration

    def __post_init__(self) -> None:
        number = interval("every", self.seconds)
        if number < SHORTEST_SECONDS:
            raise InvalidArgument(f"every must be at least {SHORTEST_SECONDS} seconds, not {self.seconds!r}")
        object.__setattr__(self, "seconds", int(number) if number == int(number) else round(number, 6))

    @property
    def _step(self) -> int:
        """The interval in microseconds, because floats would drift apart."""
        return timedelta(seconds=float(interval("every", self.seconds))) // MICROSECOND

    def next_after(self, moment: datetime) -> datetime:
        return self._at(self._number(moment) + 1)

    def newest(self, after: datetime, until: datetime, most: int) -> list[datetime]:
        first, last = self._number(after) + 1, self._number(until)
        return [self._at(number) for number in range(max(first, last - most + 1), last + 1)]

    def definition(self) -> dict[str, Json]:
        return {"every": self.seconds}

    def __str__(self) -> str:
        return f"every {self.seconds} s"

    def _number(self, moment: datetime) -> int:
        """The number of times until a moment."""
        return ((_utc("moment", moment) - EPOCH) // MICROSECOND) // self._step

    def _at(self, number: int) -> datetime:
        return EPOCH + timedelta(microseconds=number * self._step)


@dataclass(frozen=True, slots=True)
class Cron(Times):
    """Times by a cron expression, read in a time zone.

    expression: five fields (minute, hour, day of the month, month, day of the week), six with seconds first,
    or @hourly, @daily, @weekly, @monthly, @yearly. Clock changes are handled as in Debian's cron. A time with
    a fixed minute and hour runs once; if that time is left out, it runs at the end of the gap. A time with
    `*` in minute or hour goes by real time.
    """

    expression: str
    tz: str = "UTC"
    _zone: tzinfo = field(init=False, repr=False, compare=False)
    _is_fixed: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise InvalidArgument(f"cron must be a string, not {self.expression!r}")
        fields = " ".join(ALIASES.get(self.expression.strip().lower(), self.expression).split())
        try:
            next(CronSim(fields, datetime(2024, 1, 1)))
        except CronSimError as exc:
            raise InvalidArgument(
                f"cron must be a cron expression, not {self.expression!r}: {str(exc).lower()}",
                hint="minute, hour, day of the month, month, day of the week: */5 * * * *",
            ) from None
        except StopIteration:
            raise InvalidArgument(f"cron {self.expression!r} never comes: there is no such day") from None
        minute, hour = fields.split()[-5:-3]
        object.__setattr__(self, "expression", fields)
        object.__setattr__(self, "_zone", _zone(self.tz))
        object.__setattr__(self, "_is_fixed", not minute.startswith("*") and not hour.startswith("*"))

    def next_after(self, moment: datetime) -> datetime:
        moment = _utc("moment", moment)
        best: datetime | None = None
        for wall in self._walls(moment - self._fold(moment)):
            found = self._instants(wall)
            if best is not None and found and found[0] >= best:
                break
            later = [instant for instant in found if instant > moment and (best is None or instant < best)]
            best = min(later, default=best)
        if best is None:
            raise InvalidArgument(f"cron {self.expression!r} never comes after {moment.isoformat()}")
        return best

    def newest(self, after: datetime, until: datetime, most: int) -> list[datetime]:
        after, until = _utc("after", after), _utc("until", until)
        found = set[datetime]()
        last: datetime | None = None
        for wall in self._walls(until + self._fold(until), back=True):
            if last is not None and wall < last:
                break
            instants = self._instants(wall)
            found.update(instant for instant in instants if after < instant <= until)
            # Repeated times of the day are not in order, so read further than seems necessary.
            if instants and last is None and (len(found) >= most or instants[-1] <= after):
                last = wall - self._fold(instants[-1])
        return sorted(found)[-most:]

    def definition(self) -> dict[str, Json]:
        return {"cron": self.expression, "tz": self.tz}

    def __str__(self) -> str:
        return f"{self.expression} {self.tz}"

    def _walls(self, moment: datetime, *, back: bool = False) -> Iterator[datetime]:
        """The local times of the expression, from a moment on, or back from it."""
        wall = moment.astimezone(self._zone).replace(tzinfo=None)
        # CronSim starts after the moment that it is given.
        return CronSim(self.expression, wall + SECOND if back else wall - SECOND, reverse=back)

    def _fold(self, moment: datetime) -> timedelta:
        """By how much clocks are set back, if the local time of this moment comes twice."""
        wall = moment.astimezone(self._zone)
        first, second = (wall.replace(fold=fold).utcoffset() for fold in (0, 1))
        assert first is not None
        assert second is not None
        return first - second

    def _instants(self, wall: datetime) -> list[datetime]:
        """The moments with this local time: one, two or none. A fixed time in a gap moves to its end."""
        first, second = (self._instant(wall, fold) for fold in (0, 1))
        if first == second:
            return [first]
        if first.astimezone(self._zone).replace(tzinfo=None) == wall:
            return [first] if self._is_fixed else [first, second]
        if not self._is_fixed:
            return []
        # Clocks were set forward over this local time.
        later = wall.replace(second=0)
        while self._instant(later, 0) != self._instant(later, 1):
            later += timedelta(minutes=1)
        return [self._instant(later, 0)]

    def _instant(self, wall: datetime, fold: int) -> datetime:
        return wall.replace(tzinfo=self._zone, fold=fold).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Periodic:
    """A task that is enqueued at times."""

    name: str
    task_name: str
    queue_name: str
    payload: Json
    headers: Mapping[str, Any]
    priority: int | None
    tenant: str | None
    ttl: Duration | None
    schedule: Cron | Every
    missed: Missed

    def __post_init__(self) -> None:
        if self.missed not in ("skip", "one", "all"):
            raise InvalidArgument(f'missed must be "skip", "one" or "all", not {self.missed!r}')


def times_of(definition: Json) -> Cron | Every | None:
    """The times of a stored definition; None if it is of another kind, or of a later version."""
    try:
        match definition:
            case {"cron": str(expression), "tz": str(tz)}:
                return Cron(expression, tz)
            case {"every": int(seconds) | float(seconds)}:
                return Every(seconds)
    except InvalidArgument:
        return None
    return None


@lru_cache(maxsize=100)
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        hint = None if zoneinfo.available_timezones() else "this system has no time zones: pip install tzdata"
        raise InvalidArgument(f"tz must be a time zone, as Europe/Riga, not {name!r}", hint=hint) from None


def _utc(name: str, moment: datetime) -> datetime:
    if moment.utcoffset() is None:
        raise InvalidArgument(f"{name} must have a time zone, not {moment!r}")
    return moment.astimezone(UTC)
