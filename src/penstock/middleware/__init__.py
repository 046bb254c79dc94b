"""Middleware: hooks around enqueue and run, and what is built on them."""

from .base import EnqueueCall, Middleware

__all__ = ["EnqueueCall", "Middleware"]
