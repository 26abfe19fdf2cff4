"""Output of a comparison: the terminal, documents, figures and the format of marl-eval."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from coterie.commands.compare import Compared
from coterie.core.errors import UserError
from coterie.core.files import write_text
from coterie.core.json_output import print_json
from coterie.core.terminal import print_line, print_message
from coterie.reports.comparison import Comparison
from coterie.reports.documents import as_latex, as_markdown, print_comparison
from coterie.reports.marl_eval import write_file
from coterie.reports.tables import as_csv, as_json

_STDOUT = Path("-")


@dataclass(frozen=True)
class Outputs:
    """Files to write; `-` for stdout, None for none.

    Attributes:
        markdown, latex, csv, json: Documents.
        plot: Figure: .png, .svg or .pdf.
        marl_eval: JSON file in the format of marl-eval.
    """

    markdown: Path | None = None
    latex: Path | None = None
    csv: Path | None = None
    json: Path | None = None
    plot: Path | None = None
    marl_eval: Path | None = None

    def check(self) -> None:
        """Raises UserError for several documents on stdout, or a figure of an unknown type. Nothing is written."""
        names = [field.name for field in fields(self) if getattr(self, field.name) == _STDOUT]
        if len(names) > 1:
            raise UserError(f"--{names[1]} -: stdout has --{names[0]} already. Name a file.")
        if self.marl_eval == _STDOUT or self.plot == _STDOUT:
            raise UserError(f"--{names[0].replace('_', '-')} -: cannot be written to stdout. Name a file.")
        if self.plot is not None and self.plot.suffix not in (".png", ".svg", ".pdf"):
            raise UserError(f"--plot {self.plot}: unsupported file type. Expected .png, .svg or .pdf.")

    @property
    def to_stdout(self) -> bool:
        """True if a document is written to stdout, and nothing else may be."""
        return _STDOUT in (self.markdown, self.latex, self.csv, self.json)


_DOCUMENTS: dict[str, Callable[[Comparison], str]] = {
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
    "json": lambda comparison: json.dumps(as_json(comparison), indent=1) + "\n",
}


def write(compared: Compared, outputs: Outputs) -> list[str]:
    """Prints a comparison and writes its files.

    Args:
        compared: The comparison.
        outputs: Files to write. The table is printed if no document is written to stdout.

    Returns:
        A line per file, for stdout; none if a document was written there.

    Raises:
        UserError: If a file cannot be written.
    """
    comparison, written = compared.comparison, []
    if not outputs.to_stdout:
        print_comparison(comparison)
    for name, render in _DOCUMENTS.items():
        target = getattr(outputs, name)
        if target == _STDOUT:
            _print_document(name, comparison, render)
        elif target is not None:
            _write(target, render(comparison))
            written.append(target)
    if outputs.plot is not None:
        from coterie.reports.figures import save

        save(comparison, outputs.plot)
        written.append(outputs.plot)
    if outputs.marl_eval is not None:
        _make_folder(outputs.marl_eval)
        for note in write_file(compared.trials, outputs.marl_eval, comparison.metric, lowest=comparison.lowest):
            print_message(note)
        written.append(outputs.marl_eval)
    return [] if outputs.to_stdout else [str(path) for path in written]


def _print_document(name: str, comparison: Comparison, render: Callable[[Comparison], str]) -> None:
    if name == "json":
        print_json(as_json(comparison))
        return
    for line in render(comparison).splitlines():
        print_line(line)


def _write(path: Path, text: str) -> None:
    _make_folder(path)
    write_text(path, text)


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}). Choose another folder.") from error
