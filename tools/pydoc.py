"""Writes docs/reference/python.md from signatures and docstrings; --check fails if it is out of step."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tools.page import REFERENCE, write_or_check

import penstock

WIDTH = 100

INTRODUCTION = """\
<!-- Written by tools/pydoc.py from docstrings in src/penstock: change those, then run `make docs`. -->

# The Python reference

All that a program imports from `penstock`. New here? Begin with the [tutorial](../tutorial.md).

"""

TYPES = """\
Words in the signatures:

| | |
| --- | --- |
| `Duration` | seconds, as an `int` or a `float`, or a `timedelta` |
| `datetime` | always with a time zone, in what you give and in what you get |
| `Many` | any iterable of payloads; for the `AsyncClient` also an async one |
| `Progress` | a function that is called with a number of messages |
| `Settleable` | a `Message`, or its `Receipt` |
| `State` | `"scheduled"`, `"waiting"`, `"ready"`, `"active"`, `"done"` or `"dead"` |
| `Breakdown` | `"priority"` or `"tenant"` |
| `Missed` | `"skip"`, `"one"` or `"all"` |
| `Connecting` | an `AsyncClient`, when it is awaited or entered |
| `Json` | what JSON can hold, or `bytes` |
"""

ASYNC = """\
## AsyncClient

The same with asyncio. What differs:

- Every method is awaited: `await queue.publish(...)`. Those that are not: `consume()`, which is iterated
  over with `async for`; `using()`; `stop()` of a consumer; and `transaction()`, which is entered with
  `async with`.
- `async with connect_async() as queue:`, `async with message:`, `async with queue.consume(...) as
  consumer:`.
- `using()` takes a connection that is awaited: psycopg's `AsyncConnection`, asyncpg's, SQLAlchemy's
  `AsyncSession`, `async_scoped_session` or `AsyncConnection`.
- `publish_many()` and `send_many()` also take an async iterable.
- With `auto_extend=True` the block of a message is cancelled when its lease is lost. The blocking client
  can only say so (`message.is_lost`).
- `AsyncMessage`, `AsyncConsumer` and `AsyncTransaction` are what `Message`, `Consumer` and `Transaction`
  are here.
- A client belongs to one event loop.
"""

TRANSACTION = """\
`connection` is the connection that it runs on. All methods of the client are there but {missing}.
Nothing is tried again, and nothing is committed or rolled back by them: that is the owner's business.
"""

ERRORS = """\
All are a `penstock.PenstockError`. `error.hint` says what to do, where that is known (also shown below
the traceback). `error.sqlstate` is the code of the schema's own errors. `error.published` has the ids of
what a `publish_many()` or `send_many()` that stopped halfway had committed. Errors of the database that
are none of these come as they are, from psycopg or from the driver of your own connection.
"""

# The methods of a client, in the order to read them in. One that is missing here is an error.
GROUPS = {
    "Publish and send": ("publish", "send", "publish_many", "send_many"),
    "Consume": ("consume", "consume_batch", "consume_one", "consume_tasks", "queues_with_work"),
    "Settle": (
        *("ack", "ack_many", "nack", "nack_many", "release", "release_many", "reject", "reject_many"),
        "reject_unreadable",
    ),
    "Leases": ("extend", "extend_many", "pulse"),
    "Transactions": ("transaction", "using"),
    "Topics and queues": (
        "create_topic",
        "delete_topic",
        "list_topics",
        "create_queue",
        "alter_queue",
        "pause_queue",
        "resume_queue",
        "extend_queue_keep_alive",
        "delete_queue",
        "list_queues",
    ),
    "Rights": ("grant_queue", "revoke_queue", "open_queue", "list_grants"),
    "Dead letters": (
        "list_dlq_groups",
        "list_dlq_messages",
        "requeue_dlq_messages",
        "delete_dlq_messages",
        "add_retries",
        "purge_dlq",
        "requeue_dlq_page",
        "purge_dlq_page",
    ),
    "Operations on dead letters": (
        *("start_operation", "advance_operation", "cancel_operation", "get_operation", "list_operations"),
    ),
    "Statistics and looking in": (
        "get_queue_statistics",
        "queue_history",
        "overview_history",
        "list_messages",
        "get_message",
        "get_result",
        "search_messages",
        "explain_delivery",
        "explain_delivery_data",
        "get_stored_message",
        "list_tenants",
        "list_permits",
    ),
    "Audit": ("record_action", "list_actions"),
    "Cleanup": (
        "cancel_message",
        "deliver_message_now",
        "deliver_messages_now",
        "purge_queue",
        "purge_all_messages",
        "cleanup_queue_messages",
        "cleanup_topic_messages",
        "cleanup_expired_exclusive_queues",
    ),
    "Tasks": (
        *("declare_queue", "queue_difference", "ack_tasks", "park_messages", "done_channel", "announce_done"),
    ),
    "Groups": ("create_group", "finish_groups", "list_groups", "delete_group"),
    "Schedules": (
        "put_schedule",
        "advance_schedule",
        "pause_schedule",
        "resume_schedule",
        "run_schedule",
        "delete_schedule",
        "list_schedules",
    ),
    "Workers": ("register_worker", "beat_worker", "forget_worker", "list_workers"),
    "Diagnosis": (
        "diagnose_server",
        "diagnose_holders",
        "diagnose_tables",
        "diagnose_statements",
        "diagnose_engine",
        "diagnose_queues",
        "diagnose_errors",
        "diagnose_parked",
        "diagnose_leases",
        "diagnose_priorities",
        "diagnose_groups",
    ),
    "Now and then, and the rest": ("maintain", "sample", "raise_floor", "clock", "channel", "schema_version"),
    "Open and close": ("open", "close"),
}

TASKS = """\
A tutorial: [tasks](../tasks.md). Options and defaults in tables: [tasks](tasks.md). What ends in `_async` is
awaited, and does the same. `penstock.current_context()` is the `TaskContext` of the task that runs here, or
None.
"""

# What is shown of each class, in this order.
TASK_CLASSES: dict[type, tuple[str, ...]] = {
    penstock.App: (
        "task",
        "periodic",
        "enqueue_group",
        "enqueue_group_async",
        "add_retries",
        "add_retries_async",
        "connected_to",
        "use",
        "close",
        "aclose",
    ),
    penstock.Task: (
        "enqueue",
        "enqueue_async",
        "enqueue_many",
        "enqueue_many_async",
        "options",
        "using",
        "call",
        "handle",
    ),
    penstock.TaskCall: (),
    penstock.Handle: (
        "result",
        "result_async",
        "details",
        "details_async",
        "cancel",
        "cancel_async",
    ),
    penstock.GroupHandle: ("results", "results_async"),
    penstock.TaskContext: ("message", "extend", "transaction", "transaction_async", "logger"),
    penstock.TaskMessage: (),
    penstock.Retry: (),
    penstock.Reject: (),
    penstock.Snooze: (),
    penstock.Exponential: (),
    penstock.Worker: ("run", "run_forever", "stop", "stop_from_anywhere"),
    penstock.Middleware: ("enqueue", "run"),
    penstock.EnqueueCall: (),
}
MADE_BY_USERS = (
    penstock.App,
    penstock.Retry,
    penstock.Reject,
    penstock.Snooze,
    penstock.Exponential,
    penstock.Worker,
)

RESULTS = (
    penstock.NewMessage,
    penstock.Receipt,
    penstock.DeadLetter,
    penstock.DeadLetterPage,
    penstock.DeadLetterGroup,
    penstock.Operation,
    penstock.ErrorEntry,
    penstock.QueueStatistics,
    penstock.HistoryPoint,
    penstock.QueueOverview,
    penstock.QueueSettings,
    penstock.Topic,
    penstock.MessageDetails,
    penstock.ListedMessage,
    penstock.DeliveryExplanation,
    penstock.SearchResult,
    penstock.FoundMessage,
    penstock.TenantShare,
    penstock.PermitCount,
    penstock.AuditEntry,
    penstock.MaintenanceResult,
    penstock.GroupProgress,
    penstock.ListedSchedule,
    penstock.ListedWorker,
    penstock.SchemaVersion,
    penstock.ServerDiagnosis,
    penstock.Holder,
    penstock.TableDiagnosis,
    penstock.StatementDiagnosis,
    penstock.EngineDiagnosis,
    penstock.QueueDiagnosis,
    penstock.ErrorDiagnosis,
    penstock.ParkedDiagnosis,
    penstock.LeaseDiagnosis,
    penstock.PriorityDiagnosis,
    penstock.GroupDiagnosis,
)

CONSTANTS = {
    "URGENT": "before all others",
    "HIGH": "",
    "NORMAL": "the default",
    "LOW": "after all others",
}


def main() -> int:
    return write_or_check(__doc__, REFERENCE / "python.md", render, "the docstrings")


def render() -> str:
    """The page."""
    sections = {
        "Connecting": [*_connecting()],
        "Client": [*_client()],
        "AsyncClient": ASYNC.splitlines()[2:],
        "Message": [*_message()],
        "Consumer": [*_consumer()],
        "Transaction": [*_transaction()],
        "Tasks": [*_tasks()],
        "Models and codecs": [*_codec()],
        "Results": [*_results()],
        "Errors": [*_errors()],
        "Constants": [*_constants()],
    }
    lines = [INTRODUCTION.rstrip(), ""]
    lines += [f"- [{title}](#{_anchor(title)})" for title in sections]
    lines += ["", TYPES.rstrip()]
    for title, body in sections.items():
        lines += ["", f"## {title}", "", *body]
    text = "\n".join(lines).rstrip() + "\n"
    _require_all(text)
    return re.sub(r"\n{3,}", "\n\n", text)


def _require_all(text: str) -> None:
    missing = [name for name in penstock.__all__ if not re.search(rf"\b{name}\b", text)]
    if missing:
        raise SystemExit(f"public, but not on the page: {', '.join(missing)}: see tools/pydoc.py")


def _connecting() -> Iterator[str]:
    options = inspect.signature(penstock.Client).parameters.values()
    for function in (penstock.connect, penstock.connect_async):
        # Both take the options of a client, and are shown with them.
        signature = inspect.signature(function).replace(parameters=list(options))
        yield from _described(function.__name__, function, signature)
    signature = inspect.signature(penstock.Client)
    yield from ("### Options of a client", "")
    yield from _prose(penstock.Client, signature.parameters)


def _client() -> Iterator[str]:
    yield from (
        "What `connect()` returns. Made as `penstock.Client(...)`, with the same options, it connects at its "
        "first call. It is safe to use from all threads.",
        "",
    )
    methods = _public(penstock.Client)
    named = [name for names in GROUPS.values() for name in names]
    if sorted(named) != sorted(methods):
        wrong = sorted(set(named) ^ set(methods))
        raise SystemExit(f"GROUPS in tools/pydoc.py and the methods of a client differ in {', '.join(wrong)}")
    for title, names in GROUPS.items():
        yield from (f"- {title}: {', '.join(f'[{name}](#client{name})' for name in names)}",)
    for title, names in GROUPS.items():
        yield from ("", f"### {title}", "")
        for name in names:
            yield from _described(f"Client.{name}", methods[name], level=4)


def _message() -> Iterator[str]:
    yield from _prose(penstock.Message, ())
    members = _public(penstock.Message)
    properties = {name: each for name, each in members.items() if isinstance(each, property)}
    rows = [
        (f"`{name}`", f"`{_returns(each.fget)}`", " ".join(_prose(each, ())).strip())
        for name, each in properties.items()
    ]
    yield from ("", *_table(("attribute", "type", "meaning"), rows), "")
    for name, each in members.items():
        if name not in properties:
            yield from _described(f"Message.{name}", each)


def _consumer() -> Iterator[str]:
    yield from _prose(penstock.Consumer, ())
    yield from (
        "",
        "`consumer.queue_name` is its queue, `consumer.token` the token that all its messages are held by.",
        "",
    )
    for name, each in _public(penstock.Consumer).items():
        if name in ("stop", "close"):
            yield from _described(f"Consumer.{name}", each)


def _transaction() -> Iterator[str]:
    yield from _prose(penstock.Transaction, ())
    missing = sorted(set(_public(penstock.Client)) - set(_public(penstock.Transaction)))
    yield from ("", TRANSACTION.format(missing=_listed(missing)).rstrip())


def _tasks() -> Iterator[str]:
    yield TASKS.rstrip()
    for cls, names in TASK_CLASSES.items():
        yield from ("", f"### {cls.__name__}", "")
        signature = inspect.signature(cls)
        if cls in MADE_BY_USERS:
            yield from (*_signature(cls.__name__, signature.replace(return_annotation=cls.__name__)), "")
        yield from _prose(cls, signature.parameters)
        for name in names:
            each = inspect.getattr_static(cls, name)
            if isinstance(each, property):
                yield from ("", f"`{name}`: {' '.join(_prose(each, ())).strip()}", "")
            else:
                yield ""
                options = inspect.signature(penstock.App._declare_task) if name == "task" else None
                yield from _described(f"{cls.__name__}.{name}", each, options, level=4)


def _codec() -> Iterator[str]:
    yield (
        "`model=` in a call, and `codec=` of a client, take a type (a dataclass, a msgspec struct, "
        "a pydantic model, or any other that msgspec knows), or a `Codec`:"
    )
    yield ""
    yield from _prose(penstock.Codec, ())
    for name, each in _public(penstock.Codec).items():
        yield from ("", *_signature(name, inspect.signature(each)))


def _results() -> Iterator[str]:
    yield "What calls take and return. All are frozen."
    for cls in RESULTS:
        fields = {field.name: field for field in dataclasses.fields(cls)}
        about = _items(_docstring(cls), set(fields))
        yield from ("", f"### {cls.__name__}", "", *_paragraphs(about.prose), "")
        meanings = {name: text for names, text in about.items for name in names}
        rows = [(f"`{name}`", f"`{field.type}`", meanings.get(name, "")) for name, field in fields.items()]
        if meanings:
            yield from _table(("field", "type", "meaning"), rows)
        else:
            yield from _table(("field", "type"), [row[:2] for row in rows])


def _errors() -> Iterator[str]:
    yield from (f"    {line}" for line in _tree(penstock.PenstockError, "", ""))
    yield from ("", *ERRORS.splitlines(), "")
    rows = [(f"`{cls.__name__}`", _docstring(cls).splitlines()[0]) for cls in _family(penstock.PenstockError)]
    yield from _table(("error", "meaning"), rows)


def _constants() -> Iterator[str]:
    rows = [(f"`penstock.{name}`", str(getattr(penstock, name)), about) for name, about in CONSTANTS.items()]
    yield from ("Priorities, for `priority=`:", "", *_table(("name", "value", ""), rows), "")
    yield "`penstock.__version__` is the version of the package."


# Parts


def _described(
    name: str, function: Any, signature: inspect.Signature | None = None, level: int = 3
) -> Iterator[str]:
    """Heading, signature and docstring."""
    signature = signature or inspect.signature(function)
    yield from (f"{'#' * level} {name}", "")
    yield from _signature(name.rpartition(".")[2], signature)
    yield from ("", *_prose(function, signature.parameters), "")


def _signature(name: str, signature: inspect.Signature) -> Iterator[str]:
    own = [each for each in signature.parameters.values() if each.name != "self"]
    parts, after_star = list[str](), False
    for each in own:
        if each.kind is each.KEYWORD_ONLY and not after_star:
            parts.append("*")
            after_star = True
        parts.append(_parameter(each))
    if own and own[-1].kind is inspect.Parameter.POSITIONAL_ONLY:
        parts.append("/")
    result = str(signature.return_annotation).strip("'\"").replace("Iterator[", "ContextManager[")
    line = f"def {name}({', '.join(parts)}) -> {result}: ..."
    if len(line) > WIDTH:
        inner = "".join(f"    {part},\n" for part in parts)
        line = f"def {name}(\n{inner}) -> {result}: ..."
    yield from ("```python signatures", line, "```")


def _parameter(parameter: inspect.Parameter) -> str:
    shown = str(parameter.replace(default=parameter.empty)).replace("'", "").replace('"', "")
    if parameter.default is parameter.empty:
        return shown
    default = json.dumps(parameter.default) if isinstance(parameter.default, str) else parameter.default
    return f"{shown} = {default}"


@dataclasses.dataclass(frozen=True, slots=True)
class About:
    """A docstring: what it says in general, and of some of the parameters or fields."""

    prose: list[str]
    items: list[tuple[list[str], str]]


def _docstring(thing: Any) -> str:
    text = inspect.getdoc(thing)
    if not text:
        raise SystemExit(f"{thing!r} has no docstring")
    return text


def _items(text: str, known: set[str]) -> About:
    """Find `name: what it is.`, or `name, other: ...`, at the begin of a sentence."""
    about = About([], [])
    for paragraph in text.split("\n\n"):
        words = _code(" ".join(paragraph.split()))
        pieces = re.split(r"(?:^|(?<=[.] ))(\w+(?:, \w+)*): ", words)
        if len(pieces) < 3 or not all(set(heads.split(", ")) <= known for heads in pieces[1::2]):
            about.prose.append(words)
            continue
        if pieces[0].strip():
            about.prose.append(pieces[0].strip())
        for heads, meaning in zip(pieces[1::2], pieces[2::2], strict=True):
            about.items.append((heads.split(", "), meaning.strip()))
    return about


def _prose(thing: Any, names: Iterable[str]) -> Iterator[str]:
    """A docstring; what it tells of parameters becomes a list."""
    about = _items(_docstring(thing), set(names))
    yield from _paragraphs(about.prose[:1])
    if about.items:
        yield ""
        yield from (f"- {_listed(heads)}: {meaning}" for heads, meaning in about.items)
    if about.prose[1:]:
        yield from ("", *_paragraphs(about.prose[1:]))


def _paragraphs(texts: list[str]) -> list[str]:
    return "\n\n".join(texts).split("\n")


def _code(words: str) -> str:
    """Calls and names of the package as code, where they are not yet."""
    parts = words.split("`")
    parts[::2] = [
        re.sub(r"(?:\w+[.])*\w+[(][^()]*[)]|penstock[.]\w+", r"`\g<0>`", part) for part in parts[::2]
    ]
    return "`".join(parts)


def _public(cls: type) -> dict[str, Any]:
    """Public methods and properties, those of base classes among them, in the order of the source."""
    found: dict[str, Any] = {}
    for each in reversed(cls.__mro__):
        for name, member in vars(each).items():
            if name.startswith("_") or name == "internals":
                continue
            if inspect.isfunction(member) or isinstance(member, property):
                found[name] = member
    return found


def _returns(function: Callable[..., Any] | None) -> str:
    assert function is not None
    return str(inspect.signature(function).return_annotation).strip("'\"")


def _tree(cls: type[penstock.PenstockError], first: str, rest: str) -> Iterator[str]:
    state = cls.__dict__.get("sqlstate")
    yield f"{first}{cls.__name__}{f'  {state}' if state else ''}"
    children = _children(cls)
    for child in children:
        last = child is children[-1]
        yield from _tree(child, rest + ("└── " if last else "├── "), rest + ("    " if last else "│   "))


def _family(cls: type[penstock.PenstockError]) -> Iterator[type[penstock.PenstockError]]:
    yield cls
    for child in _children(cls):
        yield from _family(child)


def _children(cls: type[penstock.PenstockError]) -> list[type[penstock.PenstockError]]:
    return [child for child in cls.__subclasses__() if child.__name__ in penstock.__all__]


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    cells = [heads, tuple("---" for _ in heads), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


if __name__ == "__main__":
    sys.exit(main())
