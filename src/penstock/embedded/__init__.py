"""The PostgreSQL server that comes with us: a throwaway one, or one that all processes of a user share."""

from penstock.embedded.binaries import Binaries, find_binaries
from penstock.embedded.errors import EmbeddedError
from penstock.embedded.server import Server
from penstock.embedded.shared import find_shared, shared
from penstock.embedded.throwaway import throwaway

__all__ = ["Binaries", "EmbeddedError", "Server", "find_binaries", "find_shared", "shared", "throwaway"]
