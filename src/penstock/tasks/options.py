"""Options of one call of a task, checked before the call is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from penstock.errors import InvalidArgument
from penstock.values import Duration, interval, moment
from penstock.wording import shown

__all__ = ["CallOptions", "check_priority", "check_text"]

# Headers that Penstock itself sets.
RESERVED = frozenset({"task", "group", "position"})
LONGEST_TENANT = 255
LONGEST_KEY = 500


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Options of one call, or of all calls of a bound task. None: the task's own option holds."""

    delay: Duration | None = None
    deliver_after: datetime | None = None
    priority: int | None = None
    tenant: str | None = None
    ttl: Duration | None = None
    dedup_key: str | None = None
    headers: Mapping[str, Any] | None = None

    def with_more(self, given: CallOptions) -> CallOptions:
        """Merge these options with others. Refuse here what the server would refuse.

        An error of the server would abort the caller's transaction.
        """
        values = {name: getattr(given, name) for name in CallOptions.__slots__}
        options = replace(self, **{name: value for name, value in values.items() if value is not None})
        options._check()
        return options

    def _check(self) -> None:
        if self.headers is not None and not isinstance(self.headers, Mapping):
            raise InvalidArgument(f"headers must be a dict, not {shown(self.headers)}")
        if reserved := RESERVED.intersection(self.headers or ()):
            raise InvalidArgument(
                f"the header {min(reserved)!r} is used by Penstock itself: take another name"
            )
        moment("deliver_after", self.deliver_after)
        if self.delay is not None:
            interval("delay", self.delay)
            if self.deliver_after is not None:
                raise InvalidArgument("give either delay or deliver_after, not both")
        if self.ttl is not None and interval("ttl", self.ttl) == 0:
            raise InvalidArgument("ttl must be more than 0 seconds")
        check_priority(self.priority)
        check_text("tenant", self.tenant, LONGEST_TENANT)
        check_text("dedup_key", self.dedup_key, LONGEST_KEY)


def check_priority(priority: int | None) -> None:
    if priority is not None and (type(priority) is not int or priority not in range(4)):
        raise InvalidArgument(f"priority must be 0 (penstock.URGENT) to 3 (penstock.LOW), not {priority!r}")


def check_text(name: str, text: str | None, longest: int) -> None:
    if text is not None and (not isinstance(text, str) or not 1 <= len(text) <= longest or "\0" in text):
        raise InvalidArgument(f"{name} must be text of 1 to {longest} characters, not {shown(text)}")
