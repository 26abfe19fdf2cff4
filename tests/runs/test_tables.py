"""Tables in terminals of different widths."""

from __future__ import annotations

import re

import pytest

from coterie.runs.tables import print_table

COLUMNS = ("run", "training", "state", "score")
ROWS = [("runs/a-rather-long-name-of-a-run", "ippo on matrix/climbing", "finished", "-97.73 [-99.01, -95.20]")]


def printed(capsys: pytest.CaptureFixture, width: int) -> list[str]:
    print_table(COLUMNS, ROWS, title="1 finished", width=width)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_a_table_that_fits_has_a_line_per_row(capsys: pytest.CaptureFixture) -> None:
    lines = printed(capsys, 120)
    assert len(lines) == 4
    assert re.fullmatch(r" runs/a\S+ +ippo on matrix/climbing +finished +-97.73 \[-99.01, -95.20\]", lines[-1])


@pytest.mark.parametrize("width", [40, 60, 75, 80, 90, 100])
def test_words_are_not_broken_in_narrow_terminals(capsys: pytest.CaptureFixture, width: int) -> None:
    lines = printed(capsys, width)
    assert max(map(len, lines)) <= width
    text = " ".join(lines)
    for word in ("matrix/climbing", "finished", "-97.73", "[-99.01,", "-95.20]", ROWS[0][0]):
        assert re.search(rf"(^|\s){re.escape(word)}(;|\s|$)", text), (word, lines)


def test_rows_that_do_not_fit_are_paragraphs_with_headings(capsys: pytest.CaptureFixture) -> None:
    assert printed(capsys, 60) == [
        "1 finished",
        ROWS[0][0],
        "  training ippo on matrix/climbing; state finished;",
        "  score -97.73 [-99.01, -95.20]",
    ]
