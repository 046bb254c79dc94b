"""The worker: claims messages of task queues, runs their handlers, and settles what came of it."""
