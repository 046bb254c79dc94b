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
    from .errors import (
        ClientClosed,
        ConnectionLost,
        DatabaseUnavailable,
        DeliveryUnknown,
        InvalidArgument,
        LeaseLost,
        NotFound,
        NotReplicated,
        PayloadInvalid,
        PayloadTooLarge,
        PenstockError,
        QueueDiffers,
        QueueNotFound,
        SchemaError,
        SchemaMissing,
        SchemaOutdated,
        SchemaTooNew,
        TopicNotFound,
        UnsupportedConnection,
        WrongIsolation,
    )
    from .models import (
        Breakdown,
        DeadLetter,
        ErrorEntry,
        ListedMessage,
        MaintenanceResult,
        MessageDetails,
        NewMessage,
        QueueSettings,
        QueueStatistics,
        Receipt,
        State,
        Topic,
    )
    from .payloads import Codec
    from .schema import SchemaVersion
    from .values import HIGH, LOW, NORMAL, URGENT, Duration

__all__ = [
    "HIGH",
    "LOW",
    "NORMAL",
    "URGENT",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncMessage",
    "AsyncTransaction",
    "Breakdown",
    "Client",
    "ClientClosed",
    "Codec",
    "ConnectionLost",
    "Consumer",
    "DatabaseUnavailable",
    "DeadLetter",
    "DeliveryUnknown",
    "Duration",
    "ErrorEntry",
    "InvalidArgument",
    "LeaseLost",
    "ListedMessage",
    "MaintenanceResult",
    "Message",
    "MessageDetails",
    "NewMessage",
    "NotFound",
    "NotReplicated",
    "PayloadInvalid",
    "PayloadTooLarge",
    "PenstockError",
    "QueueDiffers",
    "QueueNotFound",
    "QueueSettings",
    "QueueStatistics",
    "Receipt",
    "SchemaError",
    "SchemaMissing",
    "SchemaOutdated",
    "SchemaTooNew",
    "SchemaVersion",
    "State",
    "Topic",
    "TopicNotFound",
    "Transaction",
    "UnsupportedConnection",
    "WrongIsolation",
    "__version__",
    "connect",
    "connect_async",
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
    ".errors": (
        "ClientClosed",
        "ConnectionLost",
        "DatabaseUnavailable",
        "DeliveryUnknown",
        "InvalidArgument",
        "LeaseLost",
        "NotFound",
        "NotReplicated",
        "PayloadInvalid",
        "PayloadTooLarge",
        "PenstockError",
        "QueueDiffers",
        "QueueNotFound",
        "SchemaError",
        "SchemaMissing",
        "SchemaOutdated",
        "SchemaTooNew",
        "TopicNotFound",
        "UnsupportedConnection",
        "WrongIsolation",
    ),
    ".models": (
        "Breakdown",
        "DeadLetter",
        "ErrorEntry",
        "ListedMessage",
        "MaintenanceResult",
        "MessageDetails",
        "NewMessage",
        "QueueSettings",
        "QueueStatistics",
        "Receipt",
        "State",
        "Topic",
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
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(home, __name__), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
