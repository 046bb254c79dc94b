"""The process that starts, watches and stops one PostgreSQL server, and outlives the caller.

It is a process of its own because it has to see its owner die in any way, and because PR_SET_PDEATHSIG and
user namespaces want a parent with a single thread, which a user's process need not be. Only the standard
library is used here: it is started with `python -I -S`.
"""
