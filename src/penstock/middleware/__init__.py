"""Middleware: hooks around enqueue and run, and the middleware that Penstock provides."""

from penstock.tasks.hooks import EnqueueCall, Middleware

__all__ = ["EnqueueCall", "Middleware"]
