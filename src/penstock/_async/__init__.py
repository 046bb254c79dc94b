"""The asynchronous client, written by hand; `penstock._sync` is generated from it by tools/unasync.py."""
