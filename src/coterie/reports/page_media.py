"""Videos and cross-play matrices of a report."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core import strict_json
from coterie.core.errors import UserError
from coterie.core.markup import Markup, cell, element, join, scrolling, table
from coterie.core.text import printable
from coterie.reports.page_results import Colors
from coterie.reports.sentences import count, number

_FIX = "Write it with: coterie league RUN RUN --json > league.json"


@dataclass(frozen=True)
class Video:
    """A video of one episode.

    Attributes:
        task: Label of the task.
        algo: Label of the algorithm.
        run: Folder of the run.
        kind: `best` or `median`.
        episode_return: Return of the team in the episode.
        episodes: Number of episodes that it was chosen from.
        shown: Fraction of the episode's timesteps in the video, from its start.
        content: MP4 file.
    """

    task: str
    algo: str
    run: str
    kind: str
    episode_return: float
    episodes: int
    shown: float
    content: bytes


def videos(found: Sequence[Video], failed: Mapping[str, str], colors: Colors) -> Markup | None:
    """Returns the videos by task and algorithm, and why some are missing; None without any.

    Args:
        found: The videos.
        failed: Reasons by run.
        colors: Colors of the algorithms.
    """
    if not found and not failed:
        return None
    parts: list[Any] = []
    for task in dict.fromkeys(video.task for video in found):
        cards = [_card(i, video, colors) for i, video in enumerate(found) if video.task == task]
        parts += [element("h3", task), element("div", *cards, class_="videos")]
    if found:
        note = (
            "Episodes of the best run of each group, with the policies of its best checkpoint, which act as in "
            f"evaluation. The best and the median of {count(found[0].episodes, 'episode')} by return."
        )
        parts.append(element("p", note, class_="note"))
    reasons = [element("li", f"No video of {printable(run)}: {printable(why)}") for run, why in failed.items()]
    return join([*parts, element("ul", *reasons, class_="note") if reasons else None])


def _card(number_: int, video: Video, colors: Colors) -> Markup:
    label = f"{video.kind} episode of {video.algo} on {video.task}, team return {number(video.episode_return)}"
    player = element(
        "video",
        data_video=number_,
        controls=True,
        muted=True,
        loop=True,
        playsinline=True,
        preload="metadata",
        aria_label=label,
    )
    part = "" if video.shown >= 1 else f", first {video.shown:.0%}"
    words = f"{video.kind} episode, team return {number(video.episode_return)}{part}"
    caption = element("figcaption", colors.swatch(video.algo), element("span", words))
    return element("figure", player, caption, class_="video", title=printable(video.run))


def video_data(found: Sequence[Video]) -> list[str]:
    """Returns the files as base64, for the page's script."""
    return [base64.b64encode(video.content).decode() for video in found]


# ------------------------------------------------------------------------------------------------------------ matrices


@dataclass(frozen=True)
class Matrix:
    """A cross-play matrix of a league. Rows play the first team, columns the second.

    Attributes:
        source: File that it was read from.
        title: Title.
        rows: Names of the members.
        values: Values by row and column, NaN where unknown.
        errors: Their standard errors, NaN where unknown.
        note: Meaning of the values.
        ratings: Elo rating and standard error by member; empty if sides differ.
    """

    source: str
    title: str
    rows: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    errors: tuple[tuple[float, ...], ...]
    note: str
    ratings: Mapping[str, tuple[float, float]]


def read_league(path: Path) -> list[Matrix]:
    """Returns the matrices in the JSON of `coterie league`: of scores, or of returns by team if sides differ.

    Raises:
        UserError: If the file is not one.
    """
    content = strict_json.read_object(path, _FIX)
    try:
        return _matrices(path, content)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{path}: not the result of a league. {_FIX}") from None


def _matrices(path: Path, content: Mapping[str, Any]) -> list[Matrix]:
    members = tuple(map(str, content["score"]))
    elo = content.get("elo") or {}
    ratings = {str(name): (float(one["rating"]), float(one["error"])) for name, one in elo.items()}
    first, second = str(content["rows"]), str(content["columns"])
    episodes = count(int(content["episodes"]), "episode")
    head = str(content["env"])

    def table_of(values: Mapping[str, Any]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(_number(values[row][column]) for column in members) for row in members)

    unknown = tuple((math.nan,) * len(members) for _ in members)
    if ratings:
        score = table_of(content["score"])
        values = tuple(
            tuple(math.nan if i == j else (score[i][j] + 1 - score[j][i]) / 2 for j in range(len(members)))
            for i in range(len(members))
        )
        note = f"Share of episodes that the row wins, from either side, {episodes} per pair and side. Draws count half."
        return [Matrix(str(path), f"{head}: win rate of the row", members, values, unknown, note, ratings)]
    note = f"Rows play {first}, columns {second}; {episodes} per pair, with standard errors."
    return [
        Matrix(
            source=str(path),
            title=f"{head}: mean team return of {team}",
            rows=members,
            values=table_of(values),
            errors=table_of(content["return_error"][team]),
            note=note,
            ratings={},
        )
        for team, values in content["return_mean"].items()
    ]


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def matrices(found: Sequence[Matrix]) -> Markup | None:
    """Returns the matrices as tables whose cells are shaded by their value; None without any."""
    return element("div", *(_matrix(one) for one in found), class_="figures") if found else None


def _matrix(matrix: Matrix) -> Markup:
    finite = [x for row in matrix.values for x in row if math.isfinite(x)]
    low, high = (0.0, 1.0) if matrix.ratings else (min(finite, default=0.0), max(finite, default=1.0))
    rows = [
        [name, *(_shaded(x, error, low, high) for x, error in zip(values, errors, strict=True))]
        for name, values, errors in zip(matrix.rows, matrix.values, matrix.errors, strict=True)
    ]
    shown = scrolling(table(["", *matrix.rows], rows, caption=matrix.title, class_="matrix"), matrix.title)
    order = sorted(matrix.ratings.items(), key=lambda item: -item[1][0])
    lines = [[name, cell(f"{rating:.0f} ± {error:.0f}", value=rating)] for name, (rating, error) in order]
    elo = scrolling(table(["Member", "Elo rating"], lines, caption="Elo ratings"), "Elo ratings") if lines else None
    return element(
        "figure", element("h3", matrix.title), shown, element("figcaption", matrix.note), elo, title=matrix.source
    )


def _shaded(value: float, error: float, low: float, high: float) -> Markup:
    """Returns a cell with one of ten shades."""
    if not math.isfinite(value):
        return cell("–")
    share = 0.5 if high <= low else (value - low) / (high - low)
    text = join([number(value), " ", element("small", f"± {number(error)}")]) if math.isfinite(error) else number(value)
    return cell(text, value=value, class_=f"shade s{min(9, max(0, int(share * 10)))}")
