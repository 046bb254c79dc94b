"""Every function of the schema as a typed call. A Python method that does the same carries the same verb."""

# ruff: noqa: F403 - each module says itself what is in it

from .administration import *
from .consuming import *
from .diagnosing import *
from .operating import *
from .publishing import *
from .session import *
from .tasks import *
