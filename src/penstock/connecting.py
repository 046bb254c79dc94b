"""How a program begins: `with connect() as queue:`, `async with connect_async() as queue:`."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Any, TypedDict, Unpack

from ._async.client import AsyncClient
from ._sync.client import Client
from .values import Duration

__all__ = ["ClientOptions", "Connecting", "connect", "connect_async"]


class ClientOptions(TypedDict, total=False):
    """The options of a client; what they mean is told there."""

    listen_dsn: str | None
    max_connections: int
    connection_timeout: Duration
    call_timeout: Duration | None
    retry_for: Duration
    codec: Any
    maintain: bool
    install: bool | None


def connect(dsn: str | None = None, **options: Unpack[ClientOptions]) -> Client:
    """A Client that is connected: `with connect() as queue:`, or `queue = connect()` and close() it."""
    client = Client(dsn, **options)
    try:
        client.open()
    except BaseException:
        client.close()
        raise
    return client


def connect_async(dsn: str | None = None, **options: Unpack[ClientOptions]) -> Connecting:
    """An AsyncClient: `async with connect_async() as queue:`, or `queue = await connect_async()`."""
    return Connecting(AsyncClient(dsn, **options))


class Connecting:
    """An AsyncClient that is being connected."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> AsyncClient:
        try:
            await self._client.open()
        except BaseException:
            await self._client.close()
            raise
        return self._client

    async def __aexit__(
        self, cls: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._client.close()
