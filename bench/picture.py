"""Waiting times as a picture: a dot a message, a panel a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from bench.tenants import Message

QUIET_COLOUR = "#2f7fd6"
NOISY_COLOUR = "#d9730d"
INK = "#7f7f7f"
"""Colours of medium brightness on no background, to be read on a white page and on a dark one."""

DOTS = 600
"""At the most so many of a kind in a panel: each is fifty bytes of the file."""

SHORTEST, LONGEST = 0.001, 1000.0
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "penstock",
    "path.simplify": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True, slots=True)
class Panel:
    """One run."""

    title: str
    messages: Sequence[Message]
    quiet_p99: float


def draw(path: Path, panels: Sequence[Panel], noisy: str, span: tuple[float, float]) -> None:
    """Draw the panels beside each other, on one scale; the same data give the same file."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4 * len(panels), 4), layout="constrained")
        axes = figure.subplots(1, len(panels), sharey=True)
        for axis, panel in zip(axes, panels, strict=True):
            _draw_panel(axis, panel, noisy, span)
        axes[0].set_ylabel("waited until it was claimed")
        handles, labels = axes[-1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        figure.savefig(path, transparent=True, metadata={"Date": None})


def _draw_panel(axis: Axes, panel: Panel, noisy: str, span: tuple[float, float]) -> None:
    axis.set_title(panel.title, fontsize=11)
    axis.set_yscale("log")
    axis.set_ylim(SHORTEST, LONGEST)
    axis.set_xlim(*span)
    axis.set_xlabel("published, s after the flood began")
    axis.yaxis.set_major_formatter(FuncFormatter(_duration))
    axis.grid(axis="y", color=INK, alpha=0.25, linewidth=0.6)
    axis.minorticks_off()
    for is_noisy, label, colour in (
        (True, "noisy tenant", NOISY_COLOUR),
        (False, "quiet tenants", QUIET_COLOUR),
    ):
        messages = _thinned([m for m in panel.messages if (m.tenant == noisy) is is_noisy])
        for claimed, alpha, note in ((True, 0.9, ""), (False, 0.5, ", still waiting at the end")):
            dots = [
                (message.published, max(SHORTEST, message.waited(span[1])))
                for message in messages
                if (message.claimed is not None) is claimed
            ]
            _dot(axis, dots, colour=colour, alpha=alpha, label=label + note)
    axis.axhline(panel.quiet_p99, color=QUIET_COLOUR, linewidth=1, linestyle="--")
    axis.annotate(
        f"p99 of the quiet: {_duration(panel.quiet_p99)}",
        (span[1], panel.quiet_p99),
        xytext=(-2, 4),
        textcoords="offset points",
        ha="right",
        color=QUIET_COLOUR,
    )


def _dot(axis: Axes, dots: Sequence[tuple[float, float]], *, colour: str, alpha: float, label: str) -> None:
    """Lines without length with round ends, all in one path, which keeps the file small."""
    gap = float("nan")
    times = [x for time, _ in dots for x in (time, time, gap)]
    waits = [y for _, wait in dots for y in (wait, wait, gap)]
    axis.plot(times, waits, color=colour, alpha=alpha, linewidth=2.4, solid_capstyle="round", label=label)


def _thinned(messages: Sequence[Message]) -> list[Message]:
    """No more than there is room for, at even distances in the order of publishing."""
    ordered = sorted(messages, key=lambda message: message.published)
    step = max(1.0, len(ordered) / DOTS)
    return [ordered[int(number * step)] for number in range(int(len(ordered) / step))]


def _duration(seconds: float, _: object = None) -> str:
    value, unit = (seconds, "s") if seconds >= 1 else (1000 * seconds, "ms")
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
