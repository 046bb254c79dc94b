"""Our worker against those of the peers, in one run on one server: `make bench-worker`.

One worker process each, with a handler that does nothing: enqueues one by one and in bulk, a drain, how soon
an idle worker begins a task, and the WAL that a task costs. Then all of it again while a transaction holds
back vacuum, after as many tasks went through as were measured before. Contestants take turns, ours with each
of the fastest; a figure is the median of its rounds. The peers come from PyPI, each into its own environment.

Then ours alone, with other messages in the queue: of unknown tasks, retried, of a kind that is full; with a
cap set from outside; and with tasks that fail once. `--states` measures just that.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from bench import report
from bench.arena import Arena, arena
from bench.holders import held_snapshot
from bench.peers import environments, measures, states, verdict
from bench.peers.measures import Amounts, Round
from bench.peers.roster import CONTESTANTS, OURS, Contestant
from bench.peers.runner import PeerError
from bench.report import Goal

WORTH_REPEATING = 0.5
"""Of the drain of the fastest framework among the peers: a slower peer is measured once."""
STATE_SECONDS = 25.0
"""What is not drained in a state of the queue by then is not waited for."""
LOAD_SECONDS = 8.0
"""What a contestant gets to do in a later round takes it about that long, at the most."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure."""

    amounts: Amounts
    rounds: int
    held_rounds: int
    hold_seconds: float
    state_tasks: int
    state_rounds: int


WHOLE = Plan(
    Amounts(single=2000, bulk=50_000, drain_seconds=12, paced_rate=50, paced_seconds=7),
    rounds=3,
    held_rounds=3,
    hold_seconds=60,
    state_tasks=50_000,
    state_rounds=3,
)
QUICK = Plan(
    Amounts(single=500, bulk=10_000, drain_seconds=5, paced_rate=50, paced_seconds=3),
    rounds=1,
    held_rounds=1,
    hold_seconds=10,
    state_tasks=10_000,
    state_rounds=1,
)


@dataclass(slots=True)
class Record:
    """What was found of a contestant."""

    version: str
    rounds: list[Round] = field(default_factory=list)
    held: list[Round] = field(default_factory=list)
    beside: list[Round] = field(default_factory=list)
    """Rounds without a held snapshot in turn with those that have one."""
    failure: str | None = None


class Contest:
    """All contestants, and what was found of each."""

    def __init__(self, server: Arena, plan: Plan, contestants: Sequence[Contestant]) -> None:
        self._server = server
        self._plan = plan
        self._contestants = contestants
        self.records = {each.name: Record(environments.version(each)) for each in contestants}

    def run(self) -> None:
        """The rounds without a held snapshot, then those with one."""
        for number in range(self._plan.rounds):
            print(f"\nround {number + 1} of {self._plan.rounds}", flush=True)
            for contestant in self._turns(repeated=number > 0):
                self._round(contestant, self.records[contestant.name].rounds)
        if self._plan.held_rounds:
            self._run_held()

    def _turns(self, *, repeated: bool) -> list[Contestant]:
        """The contestants of a round, in order: ours before each of the others where it is repeated."""
        able = [each for each in self._contestants if self.records[each.name].failure is None]
        if not repeated:
            return able
        peers = [each for each in able if not each.is_ours]
        fastest = max((self._drain(each) for each in peers if each.is_framework), default=0.0)
        peers = [each for each in peers if self._drain(each) >= WORTH_REPEATING * fastest]
        ours = [each for each in able if each.is_ours]
        return [each for peer in peers for each in (*ours, peer)] or ours

    def _drain(self, contestant: Contestant) -> float:
        return verdict.median_of(self.records[contestant.name].rounds, "drain") or 0.0

    def _amounts(self, contestant: Contestant) -> Amounts:
        """As planned; less for a slow contestant, as soon as that is known."""
        amounts, rate = self._plan.amounts, self._drain(contestant)
        if not rate:
            return amounts
        tasks = min(amounts.bulk, int(rate * LOAD_SECONDS))
        return replace(amounts, bulk=tasks, single=min(amounts.single, tasks))

    def _round(self, contestant: Contestant, found: list[Round], dsn: str | None = None) -> None:
        """One round, in a fresh database unless one is given."""
        try:
            if dsn is None:
                dsn = self._server.database(contestant.name)
                measures.setup(contestant, dsn)
            found.append(measures.measure(contestant, dsn, self._amounts(contestant)))
        except PeerError as failure:
            self.records[contestant.name].failure = str(failure)
            print(f"  {failure}", flush=True)
        else:
            print(f"  {contestant.title:15} {verdict.line(found[-1])}", flush=True)

    def _run_held(self) -> None:
        """A snapshot is held in every database; tasks go through each, then all is measured again."""
        plan = self._plan
        able = [each for each in self._contestants if self.records[each.name].rounds]
        with ExitStack() as stack:
            databases = {each.name: self._server.database(f"{each.name}_held") for each in able}
            for contestant in able:
                measures.setup(contestant, databases[contestant.name])
            for dsn in databases.values():
                stack.enter_context(held_snapshot(dsn, writes=False))
            until = time.monotonic() + plan.hold_seconds
            print("\na snapshot is held in each database; tasks go through each of them", flush=True)
            for contestant in able:
                self._load(contestant, databases[contestant.name])
            time.sleep(max(0.0, until - time.monotonic()))
            for number in range(plan.held_rounds):
                print(f"\nround {number + 1} of {plan.held_rounds} with the snapshots held", flush=True)
                for contestant in able if not number else [each for each in able if each.is_ours]:
                    record = self.records[contestant.name]
                    if record.failure is None:
                        self._round(contestant, record.held, databases[contestant.name])
                    if contestant.is_ours:  # whose ratio is judged: noise of the machine is to hit both
                        self._round(contestant, record.beside)

    def _load(self, contestant: Contestant, dsn: str) -> None:
        amounts = self._amounts(contestant)
        try:
            measures.fill(contestant, dsn, amounts.bulk)
            measures.drain(contestant, dsn, amounts.bulk, 5 * amounts.drain_seconds)
        except PeerError as failure:
            self.records[contestant.name].failure = f"with a snapshot held: {failure}"


def measure_states(server: Arena, plan: Plan) -> list[Goal]:
    """Our drain beside other messages, against the plain one: prints the table."""
    print("\nour drain, with other messages in its queue", flush=True)
    found = states.measure(server.database, plan.state_tasks, plan.state_rounds, STATE_SECONDS)
    print(f"\n{states.table(found)}")
    return states.goals(found)


def chosen(names: Sequence[str] | None) -> list[Contestant]:
    """Ours and the peers that are asked for and can run; prints which cannot."""
    wanted = CONTESTANTS if names is None else {OURS, *names}
    able = []
    for name, contestant in CONTESTANTS.items():
        if name not in wanted:
            continue
        if contestant.missing:
            print(f"{contestant.title}: {contestant.missing}, left out")
        else:
            able.append(contestant)
    return able


def tell(goals: Sequence[Goal]) -> None:
    print(f"\n{report.goals(goals)}")
    print(f"\n{sum(goal.met is False for goal in goals)} of {len(goals)} goals missed")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer tasks, one round")
    parser.add_argument(
        "--only", choices=sorted(CONTESTANTS), action="append", metavar="NAME", help="ours and this peer"
    )
    parser.add_argument("--only-ours", action="store_true", help="none of the peers")
    parser.add_argument("--states", action="store_true", help="only ours with other messages in the queue")
    parser.add_argument("--rounds", type=int, metavar="N", help="without a held snapshot (3; --quick: 1)")
    parser.add_argument("--no-hold", action="store_true", help="not again with a snapshot held")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table into this page")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    plan = QUICK if given.quick else WHOLE
    if given.rounds is not None:
        rounds = max(1, given.rounds)
        plan = replace(plan, rounds=rounds, state_rounds=rounds)
    if given.no_hold:
        plan = replace(plan, held_rounds=0)
    if given.states:
        print(report.load())
        with arena() as server:
            print(f"PostgreSQL {server.version}")
            tell(measure_states(server, plan))
        return
    contestants = chosen([] if given.only_ours else given.only)
    for contestant in contestants:
        environments.python(contestant)
    print(report.load())
    with arena() as server:
        print(f"PostgreSQL {server.version}")
        contest = Contest(server, plan, contestants)
        contest.run()
        state_goals = measure_states(server, plan)
        version = server.version
    found = verdict.summarize(contest.records)
    print(f"\n{verdict.table(found)}")
    goals = [*verdict.goals(found), *state_goals]
    print(f"\n{verdict.ratios(found)}")
    tell(goals)
    records = {name: asdict(record) for name, record in contest.records.items()}
    report.write_json(given.json, goals, {"plan": asdict(plan), "postgresql": version, "records": records})
    if given.markdown is not None:
        verdict.write_markdown(given.markdown, found, goals, version, plan.amounts.bulk)


if __name__ == "__main__":
    main()
