"""The names that users may import: a change here is a change of the API."""

from __future__ import annotations

import penstock
from penstock import errors, schema, worker


def test_of_the_package() -> None:
    assert penstock.__all__ == [
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
    assert all(getattr(penstock, name) is not None for name in penstock.__all__)
    assert dir(penstock) == sorted(penstock.__all__)
    assert not hasattr(penstock, "calls_of_the_wild")


def test_of_the_modules() -> None:
    assert schema.__all__ == [
        "File",
        "Installed",
        "SchemaVersion",
        "Source",
        "check",
        "check_owner",
        "check_version",
        "install",
        "installed_version",
        "load",
        "script",
        "uninstall",
    ]
    assert worker.__all__ == ["Worker"] == dir(worker)
    assert worker.Worker is penstock.Worker
    assert not hasattr(worker, "calls_of_the_wild")
    for module in (errors, schema):
        assert sorted(module.__all__) == module.__all__
        assert all(hasattr(module, name) for name in module.__all__)
