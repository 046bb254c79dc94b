# Written by tools/unasync.py from src/penstock/_async/__init__.py:
# change that, run `make generate`.

"""The blocking client."""
