"""Message queues and task queues inside PostgreSQL."""

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
    DeadLetter,
    ErrorEntry,
    ListedMessage,
    MaintenanceResult,
    MessageDetails,
    NewMessage,
    QueueSettings,
    QueueStatistics,
    Receipt,
    Topic,
)
from .payloads import Codec
from .schema import SchemaVersion
from .values import HIGH, LOW, NORMAL, URGENT
from .version import __version__

__all__ = [
    "HIGH",
    "LOW",
    "NORMAL",
    "URGENT",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncMessage",
    "AsyncTransaction",
    "Client",
    "Codec",
    "ConnectionLost",
    "Consumer",
    "DatabaseUnavailable",
    "DeadLetter",
    "DeliveryUnknown",
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
    "Topic",
    "TopicNotFound",
    "Transaction",
    "UnsupportedConnection",
    "WrongIsolation",
    "__version__",
    "connect",
    "connect_async",
]
