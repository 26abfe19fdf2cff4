"""A comparison as text for the terminal, Markdown and LaTeX."""

from __future__ import annotations

import re

from coterie.core.terminal import print_line
from coterie.core.text import printable
from coterie.reports.comparison import Comparison
from coterie.reports.tables import ReportTable, tables_of
from coterie.runs.tables import print_table

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",  # without T1 fonts, these three are other letters
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def print_comparison(comparison: Comparison) -> None:
    """Prints the sentences, the tables and the notes on stdout."""
    for sentence in comparison.sentences:
        print_line(sentence)
    print_line()
    for table in tables_of(comparison):
        print_table(table.columns, table.rows, title=table.title)
    for line in footnotes(comparison):
        print_line(line)


def footnotes(comparison: Comparison) -> list[str]:
    """Returns lines that explain the numbers, and the notes."""
    lines = [f"Brackets: {comparison.resampling}. IQM: interquartile mean."]
    gap = "the mean amount by which normalized scores miss 1"
    lines.append(f"Optimality gap: {gap} ({comparison.normalization}).")
    if any(pair.is_significant for pair in comparison.pairs):
        lines.append(
            "*: p below 0.05 after Holm's correction; over tasks, an interval of the probability that excludes 0.5."
        )
    return lines + [f"Note: {note}." if not note.endswith((".", "?")) else f"Note: {note}" for note in comparison.notes]


def as_markdown(comparison: Comparison) -> str:
    """Returns the sentences, tables and notes as Markdown, with the best values in bold."""
    parts = [" ".join(map(_markdown, comparison.sentences))]
    for table in tables_of(comparison):
        head = "| " + " | ".join(map(_markdown, table.columns)) + " |"
        rule = "|" + "|".join("---" if i == 0 else "--:" for i in range(len(table.columns))) + "|"
        rows = ["| " + " | ".join(cells) + " |" for cells in _cells(table, _markdown, "**{}**")]
        parts.append("\n".join([f"**{_markdown(table.title)}**", "", head, rule, *rows]))
    parts.append("\n".join(f"- {_markdown(line)}" for line in footnotes(comparison)))
    return "\n\n".join(parts) + "\n"


def as_latex(comparison: Comparison) -> str:
    """Returns the tables as LaTeX with booktabs, the best values in bold, and the sentences as comments."""
    parts = ["% Needs \\usepackage{booktabs}.", *(f"% {printable(s)}" for s in comparison.sentences)]
    for table in tables_of(comparison):
        rows = [" & ".join(cells) + r" \\" for cells in _cells(table, _latex, r"\textbf{{{}}}")]
        parts += [
            "",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(table.title if table.task else table.title[0].upper() + table.title[1:])}.}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
            r"\toprule",
            " & ".join(map(_latex, table.columns)) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    parts += ["", *(f"% {printable(line)}" for line in footnotes(comparison))]
    return "\n".join(parts) + "\n"


def _cells(table: ReportTable, escape, bold: str) -> list[list[str]]:
    return [
        [bold.format(escape(cell)) if (i, j) in table.best else escape(cell) for j, cell in enumerate(row)]
        for i, row in enumerate(table.rows)
    ]


def _markdown(text: str) -> str:
    """Returns a text without effects in Markdown. Brackets are left as they are unless a link would begin there."""
    return re.sub(r"([\\|*_<>`~&$#]|\](?=[(\[:]))", r"\\\1", printable(text))


def _latex(text: str) -> str:
    """Returns a text without effects in LaTeX. A bracket or a star at its start would belong to the line before."""
    text = "".join(_LATEX.get(letter, letter) for letter in printable(text))
    text = re.sub(r"(?<![\w.])-(?=\d)", "$-$", text)
    return f"{{{text[0]}}}{text[1:]}" if text[:1] in ("[", "*") else text
