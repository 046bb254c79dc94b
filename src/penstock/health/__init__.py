"""Whether this program is alive and does its work, told to whoever asks: probes over HTTP, and systemd."""

from penstock.health.reporting import Reporting, reporting
from penstock.health.state import Health

__all__ = ["Health", "Reporting", "reporting"]
