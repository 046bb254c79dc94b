"""Sends a second over the number of connections as a picture: a panel for each disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from bench.peers.roster import OURS
from bench.picture import INK, NOISY_COLOUR, QUIET_COLOUR, STYLE
from bench.sends.systems import NOTIFY, REFERENCE
from bench.sends.throughput import Case

LINES = (
    (REFERENCE, "hand-rolled queue without wake-ups", INK, "--"),
    (OURS, "Penstock, a worker listens", QUIET_COLOUR, "-"),
    (NOTIFY, "NOTIFY on every send", NOISY_COLOUR, "-"),
)


def draw(path: Path, cases: Sequence[Case]) -> None:
    """Draw the panels beside each other; the same data give the same file."""
    disks = list(dict.fromkeys(case.disk for case in cases))
    counts = sorted({case.connections for case in cases})
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.5 * len(disks), 4), layout="constrained")
        (axes,) = figure.subplots(1, len(disks), sharey=True, squeeze=False)
        for axis, disk in zip(axes, disks, strict=True):
            axis.set_title(
                f"commit {disk}" if disk.startswith("at") else f"a commit takes {disk}", fontsize=11
            )
            axis.set_xscale("log", base=2)
            axis.set_xticks(counts, [str(count) for count in counts])
            axis.xaxis.set_minor_locator(NullLocator())
            axis.set_xlabel("connections that send")
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            axis.grid(axis="y", color=INK, alpha=0.25, linewidth=0.6)
            for name, label, colour, style in LINES:
                found = {
                    case.connections: case.rate for case in cases if (case.disk, case.system) == (disk, name)
                }
                points = sorted(found.items())
                axis.plot(
                    [x for x, _ in points],
                    [y for _, y in points],
                    color=colour,
                    linestyle=style,
                    marker="o",
                    markersize=4,
                    label=label,
                )
            axis.set_ylim(bottom=0)
        axes[0].set_ylabel("sends per second")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        figure.savefig(path, transparent=True, metadata={"Date": None})
