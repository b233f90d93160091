"""Learning curves, and where the time of a fit went, as SVG for notebooks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

_WIDTH, _HEIGHT, _MARGIN = 240, 150, 24
_COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c")

Series = Mapping[str, list[float]]


def charts(history: Series) -> dict[str, dict[str, list[float]]]:
    """Series by metric: ``val_loss`` and ``eval_loss`` go with ``loss``."""
    grouped: dict[str, dict[str, list[float]]] = {}
    for name, values in history.items():
        metric = name.removeprefix("val_").removeprefix("eval_")
        grouped.setdefault(metric, {})[name] = values
    return grouped


def svg(history: Series) -> str:
    """One chart a metric; nothing if there are no two epochs to compare."""
    drawn = [_chart(series) for series in charts(history).values() if max(map(len, series.values())) > 1]
    return "".join(drawn)


def timeline_svg(seconds: Mapping[str, float]) -> str:
    """A bar for each phase, which begins where the one before ends."""
    total = sum(seconds.values())
    if total <= 0:
        return ""
    lines, begin, left, width = [], 0.0, 4 * _MARGIN, 2 * _WIDTH
    for place, (phase, spent) in enumerate(seconds.items()):
        y, start, end = 14 * place, *(_scaled(t, 0, total, left, width - 2 * _MARGIN) for t in (begin, begin + spent))
        lines.append(f'<text x="0" y="{y + 10}" font-size="10" fill="currentColor">{escape(phase)}</text>')
        lines.append(
            f'<rect x="{start:.1f}" y="{y + 2}" width="{max(1, end - start):.1f}" height="9" fill="{_COLORS[0]}"/>'
        )
        lines.append(f'<text x="{end + 4:.1f}" y="{y + 10}" font-size="10" fill="currentColor">{spent:.1f} s</text>')
        begin += spent
    return _picture(width, 14 * len(seconds), lines)


def _chart(series: Series) -> str:
    finite = [value for values in series.values() for value in values if math.isfinite(value)]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    epochs = max(map(len, series.values()))
    lines = [
        f'<text x="{2 * _MARGIN - 4}" y="{y}" font-size="9" fill="currentColor" text-anchor="end">{value:.3g}</text>'
        for y, value in ((_MARGIN + 4, high), (_HEIGHT - _MARGIN, low))
    ]
    lines.append(f'<path d="M{2 * _MARGIN},{_MARGIN}V{_HEIGHT - _MARGIN}H{_WIDTH - 8}" stroke="#999" fill="none"/>')
    for x, anchor, text in ((2 * _MARGIN, "start", "epoch 1"), (_WIDTH - 8, "end", str(epochs))):
        y = _HEIGHT - _MARGIN + 12
        lines.append(f'<text x="{x}" y="{y}" font-size="9" fill="currentColor" text-anchor="{anchor}">{text}</text>')
    for place, (name, values) in enumerate(series.items()):
        color = _COLORS[place % len(_COLORS)]
        points = " ".join(
            f"{_scaled(i, 0, epochs - 1, 2 * _MARGIN, _WIDTH - 8):.1f},"
            f"{_scaled(value, low, high, _HEIGHT - _MARGIN, _MARGIN):.1f}"
            for i, value in enumerate(values)
            if math.isfinite(value)
        )
        lines.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        x = 2 * _MARGIN + place * (_WIDTH - 2 * _MARGIN) // len(series)
        lines.append(f'<text x="{x}" y="12" font-size="10" fill="{color}">{escape(name)}</text>')
    return _picture(_WIDTH, _HEIGHT, lines)


def _picture(width: int, height: int, lines: list[str]) -> str:
    size = f'width="{width}" height="{height}" style="vertical-align: top"'  # beside each other in a row
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(lines)}</svg>'


def _scaled(value: float, low: float, high: float, first: float, last: float) -> float:
    return first + (last - first) * ((value - low) / (high - low) if high > low else 0.5)
