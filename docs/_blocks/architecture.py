"""Draws docs/pictures/architecture.svg, readable on light and dark pages: `python docs/_blocks/architecture.py`."""

from __future__ import annotations

from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "pictures" / "architecture.svg"
WIDTH, HEIGHT = 860, 430
BLUE, GREEN, ORANGE, GRAY = "#3b82c4", "#3c9a68", "#c9772b", "#7a7f87"


def box(x: int, y: int, width: int, height: int, *, color: str, title: str, lines: tuple[str, ...] = ()) -> str:
    """A rounded box with a title and smaller lines."""
    middle = x + width // 2
    top = y + height // 2 - 8 * len(lines) + 5
    parts = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{color}" fill-opacity="0.14" '
        f'stroke="{color}" stroke-width="1.6"/>',
        f'<text x="{middle}" y="{top}" class="title">{title}</text>',
    ]
    parts += [f'<text x="{middle}" y="{top + 18 * (i + 1)}">{line}</text>' for i, line in enumerate(lines)]
    return "\n".join(parts)


def arrow(points: str, *, label: str = "", at: tuple[int, int] = (0, 0)) -> str:
    """A line with an arrowhead through `points`, with a label."""
    text = f'<text x="{at[0]}" y="{at[1]}" class="label">{label}</text>' if label else ""
    return f'<polyline points="{points}" class="arrow" marker-end="url(#head)"/>\n{text}'


def svg() -> str:
    """The whole picture."""
    inputs = ("defaults, presets, file, command line",)
    environment = ("B environments in one batch:", "tensor worlds, workers,", "other libraries, your own")
    policy = ("one per team: networks,", "normalization, hidden state;", "snapshots, scripts, runs")
    algorithm = ("one per learning team:", "targets, minibatches, loss,", "optimizer, replay buffer")
    outputs = ("config.yaml, metrics.jsonl, checkpoints, curves, videos",)
    parts = [
        box(20, 20, 820, 62, color=GRAY, title="configuration", lines=inputs),
        arrow("430,82 430,112", label="build", at=(454, 101)),
        box(20, 116, 220, 150, color=BLUE, title="environments", lines=environment),
        box(320, 116, 220, 150, color=GREEN, title="policies", lines=policy),
        box(620, 116, 220, 150, color=ORANGE, title="algorithms", lines=algorithm),
        arrow("240,160 316,160", label="timestep", at=(279, 152)),
        arrow("320,222 244,222", label="actions", at=(281, 214)),
        arrow("620,160 544,160", label="parameters", at=(581, 152)),
        arrow("130,266 130,312 730,312 730,270", label="rollout of T timesteps, when complete", at=(430, 304)),
        arrow("430,312 430,344", label="evaluate, log, checkpoint", at=(516, 333)),
        box(20, 348, 820, 62, color=GRAY, title="run folder", lines=outputs),
    ]
    body = "\n".join(parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"
 role="img" aria-label="Architecture of Coterie">
<style>
text {{ font: 14px system-ui, sans-serif; fill: #66717f; text-anchor: middle; }}
.title {{ font-weight: 600; font-size: 16px; }}
.label {{ font-size: 12px; font-style: italic; }}
.arrow {{ fill: none; stroke: #7a7f87; stroke-width: 1.6; }}
@media (prefers-color-scheme: dark) {{ text {{ fill: #b8c0cc; }} }}
</style>
<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7"
 orient="auto-start-reverse">
<path d="M0,0 L10,5 L0,10 z" fill="#7a7f87"/></marker></defs>
{body}
</svg>
"""


if __name__ == "__main__":
    OUT.write_text(svg(), encoding="utf-8")
    print(OUT)
