"""A checker of liveness: every deliverable message is started soon, whatever else waits."""
