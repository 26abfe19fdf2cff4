"""Sphinx extension that lets docstrings contain mathematics without reStructuredText markup.

Docstrings write an equation as an indented block after a blank line, as it is read in the source:

    A_t = delta_t + gamma lambda (1 - boundary_t) A_{t+1}

It is typeset on the page. Other indented blocks, such as code, become literal blocks. Elsewhere, `|x|`, `a * b` and
`u_` are text, not markup.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from sphinx.application import Sphinx

_MARKED = re.compile(r"^\s*([-*+] |\d+\. |\.\. |:)|::$")
_SECTION = re.compile(r"^\s*[A-Z][A-Za-z ]+:$")
_EQUATION = re.compile(r"\s(=|<-)\s")

_GREEK = {"eps": r"\epsilon"}
_GREEK |= {
    name: f"\\{name}" for name in ("alpha", "beta", "gamma", "delta", "eta", "lambda", "pi", "rho", "tau", "theta")
}
_COMMANDS = _GREEK | {name: f"\\{name}" for name in ("sum", "min", "max", "sqrt")}
_FUNCTIONS = ("log", "exp", "mean", "std", "argmax", "tanh", "atanh", "softmax", "clip", "erfc", "KL")
_SIGNS = {"<-": r"\leftarrow ", "!=": r"\ne ", "~": r"\approx ", "...": r"\dots "}
_TOKEN = re.compile(r"[A-Za-z]+(_[a-z]{2,})?|[_^]-\w|, {2,}|; +| +|<-|!=|\.\.\.|.")


def latex(equation: str) -> str:
    """Returns a line of plain mathematics as LaTeX.

    Names of several letters are Greek letters, functions or words; `x_name` has an index if x is a letter.
    """
    equation = re.sub(r"sqrt\(([^()]*)\)", r"sqrt {\1}", equation.strip())
    tokens = [match[0] for match in _TOKEN.finditer(equation)]
    parts, depth = [], 0
    for before, token, after in zip(["", *tokens[:-1]], tokens, [*tokens[1:], ""], strict=True):
        depth += (token in "([") - (token in ")]")
        if token[0].isalpha():
            parts.append(_name(token))
        elif len(token) == 3 and token[0] in "_^":
            parts.append(f"{token[0]}{{{token[1:]}}}")
        elif len(token) > 1 and token[0] in ",;" and depth == 0:
            parts.append(rf"{token[0]} \quad ")
        elif token.isspace():
            parts.append(_space(before, after))
        else:
            parts.append(_SIGNS.get(token, token))
    return "".join(parts)


def _name(text: str) -> str:
    base, _, index = text.partition("_")
    if index and (len(base) == 1 or base in _GREEK):
        return f"{_name(base)}_{{{_name(index)}}}"
    if base in _COMMANDS:
        return f"{_COMMANDS[base]} "
    if base in _FUNCTIONS:
        return rf"\operatorname{{{base}}}"
    return text if len(text) == 1 else rf"\text{{{text.replace('_', ' ')}}}"


def _space(before: str, after: str) -> str:
    """Returns the space between two tokens: words have one, and so have functions before their argument."""
    words = [token for token in (before, after) if len(token) > 1 and token.isalpha() and token not in _COMMANDS]
    ends = all(re.match(r"[\w\[|(]|.*[)\]}]$", token) for token in (before, after))
    return r"\ " if words and ends else " "


def mark_equations(lines: list[str]) -> list[str]:
    """The docstring with each indented block that follows a blank line as equations, or with `::` before other ones."""
    result: list[str] = []
    indent, marked, done = 0, False, 0
    for number, line in enumerate(lines):
        if number < done:
            continue
        if not line.strip():
            result.append(line)
            continue
        depth = _depth(line)
        after_blank = number > 0 and not lines[number - 1].strip()
        if after_blank and depth >= indent + 4 and not marked:
            block = _block(lines[number:], indent)
            equations = [later for later in block if later.strip()]
            if all(_EQUATION.search(later) for later in equations):
                for later in equations:
                    result += [" " * indent + ".. math::", "", " " * depth + latex(later), ""]
                done = number + len(block)
                continue
            result += [" " * indent + "::", ""]
            marked = True
        elif depth <= indent:
            marked = bool(_MARKED.search(line))
            indent = depth
        if _SECTION.match(line):
            indent, marked = depth + 4, False
        result.append(line)
    return result


def _block(lines: list[str], indent: int) -> list[str]:
    """Returns the first lines that are indented further, with blank ones among them."""
    return list(itertools.takewhile(lambda line: not line.strip() or _depth(line) > indent, lines))


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def escape_markup(lines: list[str]) -> list[str]:
    """The docstring with bars, asterisks and trailing underscores escaped outside of code and literal blocks."""
    result: list[str] = []
    literal = -1  # indentation of the line that a literal block belongs to
    for line in lines:
        depth = _depth(line)
        if line.strip() and depth <= literal:
            literal = -1
        result.append(line if literal >= 0 else _escaped(line))
        if line.rstrip().endswith("::"):
            literal = depth
    return result


def _escaped(line: str) -> str:
    start, text = re.match(r"(\s*(?:[*] )?)(.*)", line, re.DOTALL).groups()  # type: ignore[union-attr]
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"(?<!\\)([|*])|(?<=\w)(_)(?!\w)", r"\\\1\2", part) for part in parts[::2]]
    return start + "".join(parts)


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Replaces the lines of a docstring in place."""
    lines[:] = escape_markup(mark_equations(lines))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process, priority=400)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
