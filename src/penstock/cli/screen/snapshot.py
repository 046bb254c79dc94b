"""What is read from the database for one picture: pure data, nothing of how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from penstock._sync.client import Client
from penstock.cli.output import age, printable
from penstock.diagnoses import ParkedDiagnosis
from penstock.doctor.holders import subject
from penstock.models import DeadLetter, ListedMessage, ListedWorker, QueueSettings, QueueStatistics

__all__ = ["Details", "Place", "Queue", "Snapshot", "find_place", "read", "read_details", "read_vacuum"]

# How much of one queue is looked at.
MOST_TENANTS = 8
MOST_MESSAGES = 8
MOST_DEAD = 8
MOST_PARKED = 8
# How long a transaction may be open before the screen shows it.
HOLD_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """Which database this is."""

    database: str
    host: str
    server_version: str

    @property
    def name(self) -> str:
        return f"{self.database} @ {self.host}"


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue: its settings, and its counts."""

    settings: QueueSettings
    counts: QueueStatistics

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def ready(self) -> int:
        """What a consumer would get now, if there were one."""
        return self.counts.pending_count - self.counts.delayed_count - self.counts.waiting_count

    @property
    def keeps_history(self) -> bool:
        """Whether done messages can be counted: else the rates are not known."""
        return self.settings.retain_completed_seconds > 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All queues and workers at one moment. `completed` of a queue counts from the snapshot before."""

    at: datetime
    queues: Mapping[str, Queue]
    workers: tuple[ListedWorker, ...]


@dataclass(frozen=True, slots=True)
class Details:
    """What is in one queue."""

    queue: Queue
    by_priority: tuple[QueueStatistics, ...]
    by_tenant: tuple[QueueStatistics, ...]
    parked: tuple[ParkedDiagnosis, ...]
    active: tuple[ListedMessage, ...]
    coming: tuple[ListedMessage, ...]
    dead: tuple[DeadLetter, ...]


def find_place(client: Client) -> Place:
    """The server and database of the client, from libpq, without a query."""
    with client.transaction() as transaction:
        info = transaction.connection.info
        major, minor = divmod(info.server_version, 10000)
        # The folder of a socket says less than that it is here.
        host = "localhost" if info.host.startswith("/") else info.host
        return Place(info.dbname, f"{host}:{info.port}", f"{major}.{minor}")


def read(client: Client, since: datetime | None) -> Snapshot:
    """A snapshot. since: when the one before was taken; only what was completed after that is counted."""
    at = client.clock()
    counts = {each.queue_name: each for each in client.get_queue_statistics(completed_since=since or at)}
    settings = client.list_queues()
    # One that was created or deleted in between is in the next one, or not.
    queues = {each.name: Queue(each, counts[each.name]) for each in settings if each.name in counts}
    return Snapshot(at, queues, tuple(client.list_workers()))


def read_vacuum(client: Client) -> str:
    """The session that holds back vacuum for too long, in words; empty where there is none."""
    now = client.clock()
    held = [
        (now - each.transaction_started_at, each)
        for each in client.diagnose_holders()
        if each.holds_vacuum and not each.own and each.transaction_started_at is not None
    ]
    if not held:
        return ""
    longest, holder = max(held, key=lambda pair: pair[0])
    if longest.total_seconds() < HOLD_SECONDS:
        return ""
    of = ", ".join(filter(None, (holder.application_name, holder.state)))
    holding = printable(f"{subject(holder)} ({of})" if of else subject(holder))
    return f"vacuum is held back for {age(longest)} by {holding}"


def read_details(client: Client, queue: Queue) -> Details:
    """What is in a queue, as far as a screen shows it: this costs the same however much there is."""
    name = queue.name
    coming: list[ListedMessage] = []
    for state in ("ready", "waiting", "scheduled"):
        if len(coming) < MOST_MESSAGES:
            coming += client.list_messages(name, state=state, page_size=MOST_MESSAGES - len(coming))
    return Details(
        queue,
        tuple(client.get_queue_statistics(name, breakdown="priority")),
        tuple(client.get_queue_statistics(name, breakdown="tenant", top=MOST_TENANTS)),
        tuple(each for each in client.diagnose_parked() if each.queue_name == name)[:MOST_PARKED],
        tuple(client.list_messages(name, state="active", page_size=MOST_MESSAGES)),
        tuple(coming),
        tuple(client.list_dlq_messages(name, page_size=MOST_DEAD, newest_first=True)),
    )
