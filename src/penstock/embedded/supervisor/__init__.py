"""The process that starts, watches and stops one PostgreSQL server, and outlives whoever asked for it.

It is a process of its own because it must see its owner die in any way, and because PR_SET_PDEATHSIG and user namespaces
are properties of a single-threaded parent, which a user's process need not be. Only the standard library is used
here: it is started with `python -I -S`.
"""
