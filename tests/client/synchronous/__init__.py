# Written by tools/unasync.py from tests/client/asynchronous/__init__.py:
# change that, run `make generate`.

