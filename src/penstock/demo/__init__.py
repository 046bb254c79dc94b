"""A living example, run by `penstock up --demo`: a shop with three topics, a dozen queues and some tasks.

It uses the package as any program would, and is meant to be read:

- `shop.py` declares the topics and queues, each with the settings that its work asks for;
- `feed.py` is the traffic: customers that come in waves, and one that orders too much at once;
- `handlers.py` has a handler for each queue, and what goes wrong in them;
- `tasks.py` is an app with tasks, one of them periodic, which a worker runs;
- `service.py` starts all of it, and ends it.

All names begin with `demo.`, so that it disturbs no other queue. To remove it, delete its topics and queues.
"""

from penstock.demo.service import Demo

__all__ = ["Demo"]
