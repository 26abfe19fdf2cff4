"""The page of a report: one HTML file with styles, scripts and data in it, which opens without a network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.files import disk_error, write_text
from coterie.core.markup import Markup, element, join
from coterie.reports.comparison import Comparison
from coterie.reports.page_media import Matrix, Video, matrices, video_data, videos
from coterie.reports.page_results import (
    AXES,
    Colors,
    charts,
    findings,
    learning_curves,
    pairs,
    profiles,
    thresholds,
)
from coterie.reports.page_runs import commands, provenance, runs_table, settings, trials_of
from coterie.reports.records import CollectedRun
from coterie.reports.sentences import count, metric_name

_SCRIPTS = ("chart.js", "report.js")
_STYLES = ("report.css",)


@dataclass(frozen=True)
class ReportContent:
    """Content of a report.

    Attributes:
        comparison: The comparison of the runs.
        left_out: Runs that are listed only.
        command: Words of the command line that made the report; empty for none.
        videos: Videos of episodes.
        failed: Reasons why there is no video, by run.
        matrices: Cross-play matrices of leagues.
    """

    comparison: Comparison
    left_out: Sequence[CollectedRun] = ()
    command: Sequence[str] = ()
    videos: Sequence[Video] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    matrices: Sequence[Matrix] = ()


def page(content: ReportContent) -> str:
    """Returns the HTML of a report. Equal content gives equal text."""
    comparison = content.comparison
    colors = Colors(comparison)
    data = charts(comparison, colors)
    parts = [
        ("Findings", "findings", findings(comparison, colors)),
        ("Learning curves", "curves", join([_controls(comparison, colors), learning_curves(comparison, data)])),
        ("Comparisons", "pairs", _joined(pairs(comparison, colors), thresholds(comparison, colors), profiles(data))),
        ("Episodes", "episodes", videos(content.videos, content.failed, colors)),
        ("League", "league", matrices(content.matrices)),
        ("Runs", "runs", runs_table(comparison, content.left_out, colors)),
        ("Settings", "settings", settings(comparison, colors)),
        (
            "Reproduce",
            "reproduce",
            join([provenance(comparison), commands(comparison, content.command)]),
        ),
    ]
    shown = [(title, key, part) for title, key, part in parts if part]
    scripted = {"charts": data, "videos": video_data(content.videos)}
    body = element("div", _header(comparison), _notes(comparison), *(_section(*part) for part in shown), class_="page")
    return _document(_title(comparison), [_navigation(shown), element("main", body), _footer()], scripted)


def write_page(path: Path, text: str) -> None:
    """Writes a report atomically. Missing folders are created.

    Raises:
        UserError: If it cannot be written; an older file stays unchanged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error("the report", path, error) from error
    write_text(path, text)


def report_path(out: Path) -> Path:
    """Returns the file of a report: `out`, or `report.html` in it if it is a folder.

    Raises:
        UserError: If its name does not end in .html.
    """
    path = out / "report.html" if out.is_dir() else out
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {out}: unsupported file type. Name a file that ends in .html.")
    return path


# --------------------------------------------------------------------------------------------------------------- parts


def _joined(*parts: Markup | None) -> Markup:
    return join(part for part in parts if part)


def _title(comparison: Comparison) -> str:
    algos, tasks = list(comparison.algos), list(comparison.tasks)
    names = f"{', '.join(algos[:-1])} and {algos[-1]}" if 1 < len(algos) <= 4 else algos[0]
    who = names if len(algos) <= 4 else count(len(algos), "algorithm")
    return f"{who} on {tasks[0] if len(tasks) == 1 else count(len(tasks), 'task')}"


def _header(comparison: Comparison) -> Markup:
    runs = len({trial.run.name for trial in trials_of(comparison)})
    counts = sorted({len(result.trials) for result in comparison.results.values()})
    seeds = count(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    facts = [count(runs, "run"), f"{seeds} per group", *comparison.tasks, f"metric: {metric_name(comparison.metric)}"]
    if comparison.lowest:
        facts.append("lower is better")
    items = [element("li", fact) for fact in facts]
    return element("header", element("h1", _title(comparison)), element("ul", *items, class_="meta"))


def _notes(comparison: Comparison) -> Markup | None:
    if not comparison.notes:
        return None
    names = (*comparison.algos, *comparison.tasks)
    lines = [
        element("li", f"{note if note.startswith(names) else note[:1].upper() + note[1:]}".rstrip(".") + ".")
        for note in comparison.notes
    ]
    return element("aside", element("h2", "Read this first"), element("ul", *lines), class_="notes")


def _controls(comparison: Comparison, colors: Colors) -> Markup:
    """Returns the legend, whose entries hide algorithms, and the choice of the horizontal axis."""
    chips = [
        element("button", colors.swatch(algo), type="button", class_="chip", data_group=algo, aria_pressed="true")
        for algo in comparison.algos
    ]
    axes = [
        element("label", element("input", type="radio", name="axis", value=axis, checked=i == 0), element("span", name))
        for i, (axis, name) in enumerate(AXES.items())
    ]
    return element(
        "div",
        element("div", *chips, class_="chips", role="group", aria_label="Algorithms that the charts show"),
        element("div", *axes, class_="switch", role="radiogroup", aria_label="Horizontal axis"),
        element("label", element("input", type="checkbox", name="seeds"), " Each seed", class_="check"),
        element("p", "Drag to zoom, double-click to reset.", class_="hint"),
        class_="controls",
    )


def _section(title: str, key: str, content: Markup) -> Markup:
    return element("section", element("h2", title, id=f"{key}-title"), content, id=key, aria_labelledby=f"{key}-title")


def _navigation(parts: Sequence[tuple[str, str, Markup]]) -> Markup:
    links = [element("a", title, href=f"#{key}") for title, key, _ in parts]
    return element("nav", element("div", *links), aria_label="Sections")


def _footer() -> Markup:
    return element("footer", f"Made by coterie report, Coterie {metadata.version('coterie')}.")


# ------------------------------------------------------------------------------------------------------------ document


def _document(title: str, body: Sequence[Markup], data: Mapping[str, Any]) -> str:
    style = "\n".join(_read(name) for name in _STYLES)
    script = '(() => {\n"use strict";\n' + "\n".join(_read(name) for name in _SCRIPTS) + "})();\n"
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "media-src blob:; base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title} · Coterie report"),
        element("link", rel="icon", href="data:,"),
        element("style", Markup(style)),
    )
    scripts = [
        element("noscript", element("p", "Charts and videos need JavaScript. All numbers are in the tables.")),
        element("script", Markup(as_json(data)), type="application/json", id="data"),
        element("script", Markup(script)),
    ]
    text = f"<!doctype html>\n{element('html', head, element('body', *body, *scripts), lang='en')}\n"
    return text.encode(errors="backslashreplace").decode()  # names of files may hold bytes that are no text


def as_json(data: Any) -> str:
    """Returns data as JSON that may be in an HTML script element: names in it cannot end the element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _read(name: str) -> str:
    return (resources.files("coterie.reports") / "page" / name).read_text(encoding="utf-8")
