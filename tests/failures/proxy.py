"""A TCP proxy in front of a server: it cuts, refuses, freezes and delays exactly where a test wants it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

HOST = "127.0.0.1"
CHUNK = 65536
# Frames of the protocol after which the server has something to do: Query, Sync, Flush.
ENDS_OF_STATEMENT = b"QSH"
READY = b"Z"


class Cut(Enum):
    """Where a connection is cut."""

    BEFORE = "the client has sent the statement, the server never gets it"
    AFTER = "the server is done with the statement, the client never hears of it"


@dataclass(slots=True)
class Trap:
    """Cuts the connection at a statement with a text in it; so many pass before, so many are cut.

    silent: the connection stays open, and forwards nothing from then on.
    """

    needle: bytes
    cut: Cut
    skip: int
    times: int
    # Done by the proxy right after the cut.
    then: Callable[[], None] | None
    silent: bool = False

    def catches(self, statement: bytes) -> bool:
        if self.times == 0 or self.needle not in statement:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


def reserve() -> socket.socket:
    """A port that no other process is given, until this is closed. A listener that names it may bind it."""
    reserved = socket.socket()
    # The listener has to set this, too: then both may bind the port, since this one never listens.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((HOST, 0))
    return reserved


class Proxy:
    """Listens on a port of its own, and forwards to where `target` says."""

    def __init__(self, target: Callable[[], int]) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._links: set[Link] = set()
        self._traps: list[Trap] = []
        self._listening: socket.socket | None = None
        self._reserved = reserve()
        self._delay = 0.0
        self._pause = 0.0
        self._closed = False
        self._left_open: list[socket.socket] = []
        self._keeps_open = False
        self.accepted = 0
        self.port: int = self._reserved.getsockname()[1]
        self.admit()

    # What a test does

    def cut(self) -> None:
        """Cut all connections, as a crash or a cable would."""
        with self._lock:
            links = tuple(self._links)
        for link in links:
            link.cut()

    def refuse(self) -> None:
        """Nothing listens any more; what is connected stays."""
        listening, self._listening = self._listening, None
        if listening is not None:
            # Closing alone would not wake the thread that accepts.
            listening.shutdown(socket.SHUT_RDWR)
            listening.close()

    def admit(self) -> None:
        """Listen again, where it was."""
        self._listening = listening = socket.create_server((HOST, self.port), backlog=100)
        _start(self._accept, listening)

    def freeze(self) -> None:
        """Keep everything open, accept everything, forward nothing: a half-open connection."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Forward again, also what has piled up."""
        self._flowing.set()

    def silence(self) -> None:
        """Keep what is connected open, and forward nothing over it any more; new connections work."""
        with self._lock:
            links = tuple(self._links)
        for link in links:
            link.fall_silent()

    def silence_at(self, text: str, cut: Cut, *, skip: int = 0, times: int = 1) -> Trap:
        """The connection over which a statement with a text in it comes falls silent there."""
        trap = Trap(text.encode(), cut, skip, times, None, silent=True)
        with self._lock:
            self._traps.append(trap)
        return trap

    def trickle(self, seconds: float) -> None:
        """Over connections that are made from now on, 64 KB take so long, in either direction."""
        self._pause = seconds

    def delay(self, seconds: float) -> None:
        """Answers of the server come so much later."""
        self._delay = seconds

    def keep_open(self) -> None:
        """Forward what a server says when it ends a session, but not that it has ended."""
        self._keeps_open = True

    def cut_at(
        self,
        text: str,
        cut: Cut,
        *,
        skip: int = 0,
        times: int = 1,
        then: Callable[[], None] | None = None,
    ) -> Trap:
        """Cut the connection over which a statement with a text in it comes."""
        trap = Trap(text.encode(), cut, skip, times, then)
        with self._lock:
            self._traps.append(trap)
        return trap

    @property
    def connections(self) -> int:
        """How many are open."""
        with self._lock:
            return len(self._links)

    def close(self) -> None:
        self._closed = True
        self.refuse()
        self.cut()
        for client in self._left_open:
            client.close()
        self._reserved.close()
        self._flowing.set()

    # What its threads do

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            self.accepted += 1
            _start(self._connect, client)

    def _connect(self, client: socket.socket) -> None:
        self._flowing.wait()
        try:
            server = socket.create_connection((HOST, self._target()))
        except OSError:
            client.close()
            return
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._pause:
            # What waits here has left the client, which takes no notice of how slowly it goes on.
            # Not too little room either: TCP opens a window by whole segments, of 64 KB here.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * CHUNK)
        link = Link(self, client, server)
        with self._lock:
            self._links.add(link)
        if self._closed:
            link.cut()
        _start(link.upstream)
        _start(link.downstream)

    def hold(self) -> None:
        """Wait while frozen."""
        self._flowing.wait()

    def linger(self) -> None:
        """Wait as long as answers are to be late."""
        time.sleep(self._delay)

    def dawdle(self) -> None:
        """Wait as long as a piece is to take."""
        if self._pause:
            time.sleep(self._pause)

    def trap_for(self, statement: bytes) -> Trap | None:
        with self._lock:
            return next((trap for trap in self._traps if trap.catches(statement)), None)

    def keeps_open(self, client: socket.socket) -> bool:
        """Whether a client is not to know yet that its session has ended."""
        if self._keeps_open:
            self._left_open.append(client)
        return self._keeps_open

    def forget(self, link: Link) -> None:
        with self._lock:
            self._links.discard(link)


class Link:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        # Set when the answer to a statement is to be swallowed.
        self._swallowing: Trap | None = None
        # Cleared when nothing is forwarded any more.
        self._flowing = threading.Event()
        self._flowing.set()
        # Set when the server has ended the session, and the client does not know yet.
        self._has_ended = False

    def cut(self) -> None:
        """End both connections without a word."""
        self._proxy.forget(self)
        self._flowing.set()
        for one in (self._client, self._server):
            with contextlib.suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def fall_silent(self) -> None:
        """Forward nothing any more, until the end."""
        self._flowing.clear()

    def _hold(self) -> None:
        self._proxy.hold()
        self._flowing.wait()

    def _pause(self) -> None:
        """Between two pieces of a statement: a connection that is silent takes no more of them."""
        self._proxy.dawdle()
        self._hold()

    def upstream(self) -> None:
        """From the client to the server, statement by statement."""
        try:
            for statement in _statements(self._client, self._pause):
                self._hold()
                trap = self._proxy.trap_for(statement)
                if trap is not None and trap.cut is Cut.BEFORE:
                    self._cut_for(trap)
                    return
                if self._has_ended:
                    self.cut()
                    return
                self._swallowing = trap
                self._server.sendall(statement)
        except OSError:
            pass
        self._end_of_client()

    def downstream(self) -> None:
        """From the server to the client."""
        try:
            for frames in _frames(self._server, has_startup=False):
                self._hold()
                self._proxy.linger()
                trap = self._swallowing
                if trap is None:
                    self._answer(b"".join(frames))
                elif any(frame[:1] == READY for frame in frames):
                    self._cut_for(trap)
                    return
        except OSError:
            pass
        self._hold()
        if self._proxy.keeps_open(self._client):
            self._has_ended = True
            self._proxy.forget(self)
        else:
            self.cut()

    def _end_of_client(self) -> None:
        # No client waits for the rest of the server's answer.
        self._hold()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_WR)

    def _answer(self, data: bytes) -> None:
        for begin in range(0, len(data), CHUNK):
            self._client.sendall(data[begin : begin + CHUNK])
            self._proxy.dawdle()

    def _cut_for(self, trap: Trap) -> None:
        if trap.then is not None:
            trap.then()
        if trap.silent:
            self.fall_silent()
            self._hold()
        self.cut()


def _statements(source: socket.socket, pause: Callable[[], None]) -> Iterator[bytes]:
    """What a client sends, in pieces after each of which the server has something to do."""
    statement = b""
    is_startup = True
    for frames in _frames(source, has_startup=True, pause=pause):
        for frame in frames:
            statement += frame
            # The start of a connection and what belongs to it (passwords and the like) go one by one.
            if is_startup or frame[:1] in ENDS_OF_STATEMENT or frame[:1] in (b"p", b"X"):
                yield statement
                statement = b""
            is_startup = False


def _frames(
    source: socket.socket, *, has_startup: bool, pause: Callable[[], None] = lambda: None
) -> Iterator[list[bytes]]:
    """Messages of PostgreSQL's protocol, those that are there: a letter, the length, the rest.

    The first one of a client has no letter. pause: called after each piece that was read.
    """
    buffer, letters = b"", 0 if has_startup else 1
    while data := source.recv(CHUNK):
        pause()
        buffer += data
        frames, begin = list[bytes](), 0
        while len(buffer) >= begin + letters + 4:
            end = begin + letters + int.from_bytes(buffer[begin + letters : begin + letters + 4], "big")
            if end > len(buffer):
                break
            frames.append(buffer[begin:end])
            begin, letters = end, 1
        buffer = buffer[begin:]
        yield frames


def _start(function: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=function, args=arguments, name="proxy", daemon=True).start()
