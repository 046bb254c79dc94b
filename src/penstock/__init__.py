"""Message queues and task queues inside PostgreSQL."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from ._async.client import AsyncClient
    from ._async.consumer import AsyncConsumer
    from ._async.message import AsyncMessage
    from ._async.transaction import AsyncTransaction
    from ._sync.client import Client
    from ._sync.consumer import Consumer
    from ._sync.message import Message
    from ._sync.transaction import Transaction
    from .connecting import connect, connect_async
    from .diagnoses import (
        EngineDiagnosis,
        ErrorDiagnosis,
        GroupDiagnosis,
        Holder,
        LeaseDiagnosis,
        ParkedDiagnosis,
        PriorityDiagnosis,
        QueueDiagnosis,
        ServerDiagnosis,
        StatementDiagnosis,
        TableDiagnosis,
    )
    from .errors import (
        ClientClosed,
        ConnectionLost,
        DatabaseUnavailable,
        DeliveryUnknown,
        InvalidArgument,
        LeaseLost,
        MessageUnreadable,
        NotFound,
        NotReplicated,
        PayloadInvalid,
        PayloadTooLarge,
        PenstockError,
        PermissionDenied,
        QueueDiffers,
        QueueNotFound,
        SchemaError,
        SchemaMissing,
        SchemaOutdated,
        SchemaTooNew,
        SchemaUnsafe,
        TopicNotFound,
        UnsupportedConnection,
        WrongIsolation,
    )
    from .models import (
        Breakdown,
        DeadLetter,
        DeadLetterPage,
        ErrorEntry,
        GroupProgress,
        ListedMessage,
        ListedSchedule,
        ListedWorker,
        MaintenanceResult,
        MessageDetails,
        MessageResult,
        Missed,
        NewMessage,
        QueueGrant,
        QueueSettings,
        QueueStatistics,
        Receipt,
        Right,
        State,
        Topic,
        UnreadableMessage,
    )
    from .payloads import Codec
    from .schema import SchemaVersion
    from .tasks.app import App
    from .tasks.context import TaskContext, TaskMessage, current_context
    from .tasks.handle import GroupHandle, Handle, TaskFailed
    from .tasks.hooks import EnqueueCall, Middleware
    from .tasks.outcomes import Reject, Retry, Snooze
    from .tasks.policy import Exponential
    from .tasks.task import Task, TaskCall
    from .values import HIGH, LOW, NORMAL, URGENT, Duration
    from .worker.errors import AttemptTimeout, ProcessDied, RemoteError
    from .worker.worker import Worker

__all__ = [
    "HIGH",
    "LOW",
    "NORMAL",
    "URGENT",
    "App",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncMessage",
    "AsyncTransaction",
    "AttemptTimeout",
    "Breakdown",
    "Client",
    "ClientClosed",
    "Codec",
    "ConnectionLost",
    "Consumer",
    "DatabaseUnavailable",
    "DeadLetter",
    "DeadLetterPage",
    "DeliveryUnknown",
    "Duration",
    "EngineDiagnosis",
    "EnqueueCall",
    "ErrorDiagnosis",
    "ErrorEntry",
    "Exponential",
    "GroupDiagnosis",
    "GroupHandle",
    "GroupProgress",
    "Handle",
    "Holder",
    "InvalidArgument",
    "LeaseDiagnosis",
    "LeaseLost",
    "ListedMessage",
    "ListedSchedule",
    "ListedWorker",
    "MaintenanceResult",
    "Message",
    "MessageDetails",
    "MessageResult",
    "MessageUnreadable",
    "Middleware",
    "Missed",
    "NewMessage",
    "NotFound",
    "NotReplicated",
    "ParkedDiagnosis",
    "PayloadInvalid",
    "PayloadTooLarge",
    "PenstockError",
    "PermissionDenied",
    "PriorityDiagnosis",
    "ProcessDied",
    "QueueDiagnosis",
    "QueueDiffers",
    "QueueGrant",
    "QueueNotFound",
    "QueueSettings",
    "QueueStatistics",
    "Receipt",
    "Reject",
    "RemoteError",
    "Retry",
    "Right",
    "SchemaError",
    "SchemaMissing",
    "SchemaOutdated",
    "SchemaTooNew",
    "SchemaUnsafe",
    "SchemaVersion",
    "ServerDiagnosis",
    "Snooze",
    "State",
    "StatementDiagnosis",
    "TableDiagnosis",
    "Task",
    "TaskCall",
    "TaskContext",
    "TaskFailed",
    "TaskMessage",
    "Topic",
    "TopicNotFound",
    "Transaction",
    "UnreadableMessage",
    "UnsupportedConnection",
    "Worker",
    "WrongIsolation",
    "__version__",
    "connect",
    "connect_async",
    "current_context",
]

# Loaded when first asked for: a command that only prints its help should not wait for a driver.
_HOMES = {
    "._async.client": ("AsyncClient",),
    "._async.consumer": ("AsyncConsumer",),
    "._async.message": ("AsyncMessage",),
    "._async.transaction": ("AsyncTransaction",),
    "._sync.client": ("Client",),
    "._sync.consumer": ("Consumer",),
    "._sync.message": ("Message",),
    "._sync.transaction": ("Transaction",),
    ".connecting": (
        "connect",
        "connect_async",
    ),
    ".diagnoses": (
        "EngineDiagnosis",
        "ErrorDiagnosis",
        "GroupDiagnosis",
        "Holder",
        "ParkedDiagnosis",
        "LeaseDiagnosis",
        "PriorityDiagnosis",
        "QueueDiagnosis",
        "ServerDiagnosis",
        "StatementDiagnosis",
        "TableDiagnosis",
    ),
    ".errors": (
        "ClientClosed",
        "ConnectionLost",
        "DatabaseUnavailable",
        "DeliveryUnknown",
        "InvalidArgument",
        "LeaseLost",
        "MessageUnreadable",
        "NotFound",
        "NotReplicated",
        "PayloadInvalid",
        "PayloadTooLarge",
        "PenstockError",
        "PermissionDenied",
        "QueueDiffers",
        "QueueNotFound",
        "SchemaError",
        "SchemaMissing",
        "SchemaOutdated",
        "SchemaTooNew",
        "SchemaUnsafe",
        "TopicNotFound",
        "UnsupportedConnection",
        "WrongIsolation",
    ),
    ".models": (
        "Breakdown",
        "DeadLetter",
        "DeadLetterPage",
        "ErrorEntry",
        "GroupProgress",
        "ListedMessage",
        "ListedSchedule",
        "ListedWorker",
        "MaintenanceResult",
        "MessageDetails",
        "MessageResult",
        "Missed",
        "NewMessage",
        "QueueGrant",
        "QueueSettings",
        "QueueStatistics",
        "Receipt",
        "Right",
        "State",
        "Topic",
        "UnreadableMessage",
    ),
    ".payloads": ("Codec",),
    ".schema": ("SchemaVersion",),
    ".values": (
        "HIGH",
        "LOW",
        "NORMAL",
        "URGENT",
        "Duration",
    ),
    ".tasks.hooks": (
        "EnqueueCall",
        "Middleware",
    ),
    ".tasks.app": ("App",),
    ".tasks.context": (
        "TaskContext",
        "TaskMessage",
        "current_context",
    ),
    ".tasks.handle": (
        "GroupHandle",
        "Handle",
        "TaskFailed",
    ),
    ".tasks.outcomes": (
        "Reject",
        "Retry",
        "Snooze",
    ),
    ".tasks.policy": ("Exponential",),
    ".tasks.task": (
        "Task",
        "TaskCall",
    ),
    ".worker.errors": (
        "AttemptTimeout",
        "ProcessDied",
        "RemoteError",
    ),
    ".worker.worker": ("Worker",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(home, __name__), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
