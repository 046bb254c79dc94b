"""Reports whether this program is alive and does its work: to probes over HTTP, and to systemd."""

from penstock.health.reporting import Reporting, reporting
from penstock.health.state import Health

__all__ = ["Health", "Reporting", "reporting"]
