"""Middleware: hooks around enqueue and run, and what is built on them."""

from penstock.tasks.hooks import EnqueueCall, Middleware

__all__ = ["EnqueueCall", "Middleware"]
