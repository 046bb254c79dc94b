"""The settings of a queue: a form, what it would change, and what that means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.dashboard import fields
from penstock.dashboard.pages import Act, Done, Missing, View, action, page
from penstock.dashboard.quotas import quotas
from penstock.dashboard.reading import NO_HISTORY
from penstock.errors import InvalidArgument
from penstock.models import QueueSettings, QueueStatistics
from penstock.wording import count

__all__ = ["Change", "SettingField", "SettingsPage", "alter_queue", "delete_queue", "settings"]

PRIORITIES = ("urgent", "high", "normal", "low")


@dataclass(frozen=True, slots=True)
class Kind:
    """How a setting is shown and read. column: its name in QueueSettings."""

    label: str
    about: str
    column: str
    write: Callable[[Any], str]
    read: Callable[[str, str], Any]


def _number(value: int | None) -> str:
    return "0" if value is None else str(value)


def _numbers(value: tuple[int, ...]) -> str:
    return ", ".join(map(str, value))


def _delays(value: tuple[int, ...]) -> str:
    return ", ".join(map(fields.written, value))


def _flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise InvalidArgument(f"{name} must be true or false, not {text!r}")
    return text == "true"


def _seconds(label: str, about: str, name: str) -> Kind:
    return Kind(label, about, f"{name}_seconds", fields.written, fields.seconds)


KINDS: dict[str, Kind] = {
    "max_delivery_attempts": Kind(
        "Delivery attempts",
        "Then the message is a dead letter. 0: no limit.",
        "max_delivery_attempts",
        _number,
        fields.integer,
    ),
    "retry_delays": Kind(
        "Retry delays",
        "Before each further attempt; the last one repeats. 0, 10s, 1m",
        "retry_delays",
        _delays,
        lambda name, text: [fields.seconds(name, part) for part in fields.listed(text)],
    ),
    "visibility_timeout": _seconds(
        "Visibility timeout", "How long a consumer has a message.", "visibility_timeout"
    ),
    "visibility_backoff": Kind(
        "Visibility backoff",
        "The factor by which that time grows with each attempt.",
        "visibility_backoff",
        lambda value: f"{value:g}",
        fields.real,
    ),
    "message_ttl": _seconds("Time to live", "Then a message is a dead letter. 0: any age.", "message_ttl"),
    "retain_completed": _seconds("Keep completed", "How long done messages are kept.", "retain_completed"),
    "retain_dead": _seconds("Keep dead letters", "How long dead letters are kept.", "retain_dead"),
    "max_payload_bytes": Kind("Largest payload", "In bytes.", "max_payload_bytes", _number, fields.integer),
    "max_active": Kind(
        "Most active", "How many may run at once. 0: any number.", "max_active", _number, fields.integer
    ),
    "min_active": Kind(
        "Least per priority",
        "How many of those each priority has at least.",
        "min_active",
        _number,
        fields.integer,
    ),
    "priority_shares": Kind(
        "Priority shares",
        "Percent of the most active for urgent, high, normal, low.",
        "priority_shares",
        _numbers,
        lambda name, text: [fields.integer(name, part) for part in fields.listed(text)],
    ),
    "tenant_max_active": Kind(
        "Most per tenant",
        "How many of one tenant may be ready or active. 0: any number.",
        "tenant_max_active",
        _number,
        fields.integer,
    ),
    "notify": Kind(
        "Wake-ups",
        "Whether NOTIFY wakes consumers that wait.",
        "notify",
        lambda value: str(value).lower(),
        _flag,
    ),
}


@dataclass(frozen=True, slots=True)
class SettingField:
    """A field of the form."""

    name: str
    label: str
    about: str
    value: str
    is_flag: bool


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that would change."""

    name: str
    label: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class SettingsPage:
    """The settings. changes, meaning, fault: of the values in the address, if there are any."""

    queue: str
    fields: list[SettingField]
    changes: list[Change]
    meaning: list[str]
    fault: str | None
    message_count: int


@page(
    "/queues/{queue}/settings",
    template="settings.html",
    title="Settings of {queue}",
    query={name: f"Preview: {kind.about}" for name, kind in KINDS.items()},
)
async def settings(view: View, queue: str) -> SettingsPage:
    """The settings of a queue; with values in the address, a preview of what they would change."""
    found = await _settings_of(view.client, queue)
    statistics = (await view.client.get_queue_statistics(queue, completed_since=NO_HISTORY))[0]
    given = {name: value for name, value in view.query.items() if name in KINDS}
    fault, changed = None, dict[str, Any]()
    try:
        changed = _changed(found, given)
    except InvalidArgument as exc:
        fault = str(exc)
    tenants = list[QueueStatistics]()
    if "tenant_max_active" in changed:
        tenants = await view.client.get_queue_statistics(queue, breakdown="tenant", top=100)
    return SettingsPage(
        queue=queue,
        fields=[
            SettingField(
                name, kind.label, kind.about, kind.write(getattr(found, kind.column)), name == "notify"
            )
            for name, kind in KINDS.items()
        ],
        changes=[_change(found, name, value) for name, value in changed.items()],
        meaning=_meaning(found, changed, statistics, tenants),
        fault=fault,
        message_count=statistics.pending_count + statistics.processing_count + (statistics.dead_count or 0),
    )


@action(
    "/queues/{queue}/settings",
    name="alter_queue",
    needs="administer",
    fields={name: kind.about for name, kind in KINDS.items()},
)
async def alter_queue(act: Act, queue: str) -> Done:
    """Change settings of a queue; settings that are not given stay."""
    found = await _settings_of(act.tx, queue)
    given = {name: str(act.form[name]).strip() for name in KINDS if name in act.form}
    changed = _changed(found, given)
    if not changed:
        return Done("Nothing was changed: the settings are as before.")
    await act.tx.alter_queue(queue, **changed)
    changes = [_change(found, name, value) for name, value in changed.items()]
    act.detail["before"] = {each.name: each.before for each in changes}
    told = "; ".join(f"{each.label.lower()}: {each.before} to {each.after}" for each in changes)
    return Done(f"Queue {queue}: {told}.", go=("queues", queue, "settings"))


@action(
    "/queues/{queue}/delete",
    name="delete_queue",
    needs="administer",
    fields={"confirm": "The name of the queue, so that it is not deleted by accident."},
)
async def delete_queue(act: Act, queue: str) -> Done:
    """Delete a queue and all its messages."""
    if act.form.get("confirm") != queue:
        raise InvalidArgument("The queue is deleted only if its name is typed exactly.")
    await act.tx.delete_queue(queue)
    return Done(f"Queue {queue} was deleted, with all its messages.", go=())


async def _settings_of(client: Any, queue: str) -> QueueSettings:
    for each in await client.list_queues():
        if each.name == queue:
            found: QueueSettings = each
            return found
    raise Missing(f"There is no queue {queue}.")


def _changed(found: QueueSettings, given: Mapping[str, str]) -> dict[str, Any]:
    """The settings that differ from those of the queue, as alter_queue() takes them."""
    changed = {}
    for name, text in given.items():
        kind = KINDS[name]
        value = kind.read(kind.label, text.strip())
        before = getattr(found, kind.column)
        if (list(before) if isinstance(before, tuple) else before or 0) != (value or 0):
            changed[name] = value
    return changed


def _change(found: QueueSettings, name: str, value: Any) -> Change:
    kind = KINDS[name]
    after = kind.write(tuple(value) if isinstance(value, list) else value)
    return Change(name, kind.label, kind.write(getattr(found, kind.column)), after)


# What it means


def _meaning(
    found: QueueSettings,
    changed: Mapping[str, Any],
    now: QueueStatistics,
    tenants: list[QueueStatistics],
) -> list[str]:
    told = []
    if changed.keys() & {"max_active", "min_active", "priority_shares"}:
        told += _caps(found, changed, now)
    if "tenant_max_active" in changed:
        told += _tenants(changed["tenant_max_active"], tenants)
    if "max_delivery_attempts" in changed:
        told.append(
            "The new limit counts at the end of each delivery, also for messages that have failed before."
        )
    if changed.keys() & {"visibility_timeout", "visibility_backoff"}:
        told.append(
            "Leases that consumers have keep their end. The new time counts from the next delivery on."
        )
    if "message_ttl" in changed:
        told.append("Messages that were published before keep their time to live.")
    if "retain_completed" in changed and changed["retain_completed"] < found.retain_completed_seconds:
        told.append("Completed messages that are older are deleted by the next maintenance.")
    if "retain_dead" in changed and changed["retain_dead"] < found.retain_dead_seconds:
        told.append("Dead letters that are older are deleted by the next maintenance.")
    return told


def _caps(found: QueueSettings, changed: Mapping[str, Any], now: QueueStatistics) -> list[str]:
    cap = changed.get("max_active", found.max_active) or 0
    if not cap:
        return [f"There is no cap: {count(now.pending_count, 'pending message')} may run at once."]
    divided = quotas(
        cap,
        changed.get("min_active", found.min_active),
        changed.get("priority_shares", found.priority_shares),
    )
    if len(divided) == 1:
        told = [f"{cap:,} at once, of all priorities together: too few to give each its own."]
    else:
        parts = [f"{number:,} {name}" for number, name in zip(divided, PRIORITIES, strict=True)]
        told = [f"At once: {', '.join(parts)}. Each priority has its own permits."]
    surplus = now.processing_count - cap
    if surplus > 0:
        told.append(
            f"{count(now.processing_count, 'message is', 'messages are')} active now: {surplus:,} more than "
            "that. They go on; nothing new starts until so many are done."
        )
    elif now.processing_count:
        told.append(f"{count(now.processing_count, 'message is', 'messages are')} active now.")
    return told


def _tenants(cap: int, tenants: list[QueueStatistics]) -> list[str]:
    if not cap:
        return ["There is no cap: all messages of all tenants are in line."]
    over = [each for each in tenants if each.pending_count - each.delayed_count + each.processing_count > cap]
    if not over:
        return [f"No tenant has more than {cap:,} messages ready or active now."]
    names = ", ".join(repr(each.tenant) if each.tenant is not None else "no tenant" for each in over[:3])
    return [
        f"{count(len(over), 'tenant has', 'tenants have')} more than that now ({names}"
        f"{', and others' if len(over) > 3 else ''}): what is over waits until others of the tenant are done."
    ]
