"""Sphinx extension that typesets equations as MathML: browsers draw it without JavaScript, fonts or a network."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError


def mathml(latex: str, display: str) -> str:
    """Returns an equation as MathML. ExtensionError for LaTeX that cannot be converted.

    Args:
        latex: The equation, without dollar signs.
        display: `inline` or `block`.
    """
    try:
        typeset = convert(latex, display=display)
    except Exception as error:
        raise ExtensionError(f"the equation {latex!r} cannot be typeset: {error!r}") from error
    unknown = re.search(r"<m\w+>(\\\w+|&(?!#))", typeset)  # what latex2mathml does not know becomes text
    if unknown:
        raise ExtensionError(f"the equation {latex!r} cannot be typeset: {unknown[1]!r} is not supported")
    return typeset


def inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="equation">{mathml(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
