"""What is wrong with a database of queues, and what to do: facts are gathered, then judged.

`gather()` asks the database, in a second or two whatever its size. Each check is a function from those facts
to findings.
"""

from __future__ import annotations

from .checks import CHECKS, Check, examine
from .facts import Facts, NotKnown
from .findings import Finding, Limits, Status
from .gathering import gather

__all__ = ["CHECKS", "Check", "Facts", "Finding", "Limits", "NotKnown", "Status", "examine", "gather"]
