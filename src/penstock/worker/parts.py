"""The parts of a worker that works: each gets what it needs from parts that were made before it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from penstock import calls
from penstock._async.client import AsyncClient
from penstock.middleware.logging import LoggingMiddleware
from penstock.sampling import SamplingLoop
from penstock.tasks.app import App

from .contact import Contact
from .executor import Executor
from .fetcher import Fetcher
from .intake import Intake
from .leases import Leases
from .maintainer import Maintainer
from .registry import Registry
from .run import HeldRuns, Run
from .scheduler import Scheduler
from .settler import Settler
from .sources import Sources

__all__ = ["Options", "Parts", "logs_failures"]


@dataclass(frozen=True, slots=True)
class Options:
    """What a worker was asked for; see Worker."""

    queue_names: tuple[str, ...]
    concurrency: int
    threads: int
    processes: int
    lease: float
    grace: float


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts. All loops but the fetcher's run until they are cancelled."""

    held: HeldRuns
    contact: Contact
    executor: Executor
    fetcher: Fetcher
    leases: Leases
    maintainer: Maintainer
    registry: Registry
    sampling: SamplingLoop
    settler: Settler
    scheduler: Scheduler | None

    @classmethod
    def make(
        cls,
        app: App,
        options: Options,
        *,
        client: AsyncClient,
        claims: AsyncClient,
        declare: Callable[[], Coroutine[Any, Any, None]],
        slot_freed: Callable[[], None],
    ) -> Parts:
        """client: settles, listens, writes the registry. claims: claims and pulses, on its own connection.

        slot_freed: called when a slot has become free, or a run has ended.
        """
        held, sources = HeldRuns(), Sources(options.queue_names)

        def settled(runs: list[Run]) -> None:
            held.forget(runs)
            for queue_name in {run.queue_name for run in runs}:
                sources.permits_returned(queue_name)

        def slot_is_free() -> None:
            sources.wake()
            slot_freed()

        leases = Leases(claims, options.lease, held)
        settler = Settler(client, settled=settled, in_doubt=leases.renew_token, delayed=sources.delayed)
        executor = Executor(
            app,
            settler,
            held,
            settled=settled,
            slot_freed=slot_is_free,
            concurrency=options.concurrency,
            threads=options.threads,
            processes=options.processes,
            logs=logs_failures(app),
        )
        contact, maintainer = Contact(claims), Maintainer(client, leases, queue_names=options.queue_names)
        fetcher = Fetcher(
            client=client,
            claims=claims,
            executor=executor,
            intake=Intake(app, executor, settler, held),
            leases=leases,
            contact=contact,
            sources=sources,
            declare=declare,
            claimed=maintainer.claimed,
        )
        registry = Registry(
            app, client, held, leases, queue_names=options.queue_names, concurrency=options.concurrency
        )
        periodics = [each for each in app.schedules.values() if each.queue_name in options.queue_names]
        scheduler = Scheduler(client, periodics) if app.schedules else None

        async def sample() -> float:
            return (await client.internals.attempt(calls.sample())).result

        return cls(
            held,
            contact,
            executor,
            fetcher,
            leases,
            maintainer,
            registry,
            SamplingLoop(sample),
            settler,
            scheduler,
        )

    def loops(self) -> dict[str, Coroutine[Any, Any, None]]:
        """The loops besides the fetcher's, by name."""
        loops = {
            "settler": self.settler.run(),
            "leases": self.leases.run(),
            "contact": self.contact.run(),
            "registry": self.registry.run(),
            "maintainer": self.maintainer.run(),
            "sampling": self.sampling.run(),
        }
        if self.scheduler is not None:
            loops["scheduler"] = self.scheduler.run()
        return loops


def logs_failures(app: App) -> bool:
    """Whether the executor logs failures; LoggingMiddleware does so itself."""
    return not any(isinstance(middleware, LoggingMiddleware) for middleware in app.middleware)
