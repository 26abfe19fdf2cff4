"""HTML elements whose text and attributes are escaped. Control characters of texts are shown as escapes.

Pages are made of them, and what notebooks show.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

from coterie.core.text import printable

_VOID = frozenset({"br", "img", "input", "link", "meta", "line", "rect"})
"""Elements without content: of HTML, where the slash at the end does nothing, and of SVG, which needs it."""


class Markup(str):
    """HTML that is not escaped again."""

    __slots__ = ()


def escape(text: Any) -> Markup:
    """Returns a text as HTML. Markup stays as it is."""
    return text if isinstance(text, Markup) else _of_lines(str(text))


def _of_lines(text: str) -> Markup:
    return Markup(html.escape("\n".join(map(printable, text.split("\n")))))


def join(parts: Iterable[Any]) -> Markup:
    """Returns texts and elements one after the other."""
    return Markup("".join(escape(part) for part in parts if part is not None))


def element(name: str, /, *content: Any, **attributes: Any) -> Markup:
    """Returns an element.

    Args:
        name: Name of the element.
        *content: Texts and elements; None is left out.
        **attributes: Attributes. An underscore at the end is removed (`class_`), others become hyphens (`data_value`).
            True is an attribute without a value; None and False leave it out.
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{_of_lines(str(value))}"')
    opening = " ".join(words)
    return Markup(f"<{opening}/>") if name in _VOID else Markup(f"<{opening}>{join(content)}</{name}>")


def scrolling(content: Any, label: str) -> Markup:
    """Returns content that may be wider than a phone, in a region that scrolls on its own and takes the focus."""
    return element("div", content, class_="scroll", role="region", aria_label=label, tabindex=0)


def folded(summary: Any, *content: Any, class_: str | None = None) -> Markup:
    """Returns content that a click on the summary shows."""
    return element("details", element("summary", summary), *content, class_=class_)


def table(
    columns: Iterable[Any], rows: Iterable[Iterable[Any]], *, caption: str | None = None, class_: str | None = None
) -> Markup:
    """Returns a table. The first cell of each row is its heading.

    Args:
        columns: Headings: texts, or elements.
        rows: Cells: texts, or elements. `cell` makes one with a value to sort by.
        caption: Caption, which only screen readers show.
        class_: CSS classes.
    """
    head = element("thead", element("tr", *(element("th", text, scope="col") for text in columns)))
    lines = []
    for row in rows:
        cells = list(row)
        first, others = cells[0], cells[1:]
        heading = element("th", first, scope="row")
        lines.append(element("tr", heading, *(c if _is_cell(c) else element("td", c) for c in others)))
    title = None if caption is None else element("caption", caption, class_="hidden")
    return element("table", title, head, element("tbody", *lines), class_=class_)


def preformatted(text: str) -> Markup:
    """Returns lines of text in a font of fixed width."""
    return element("pre", text, style="line-height: 1.3; white-space: pre-wrap")


def paragraphs(lines: Iterable[Any]) -> Markup | None:
    """Returns a paragraph per line, None for none."""
    found = [element("p", line, style="margin: 0.3em 0") for line in lines]
    return join(found) if found else None


def cell(content: Any, *, value: float | None = None, class_: str | None = None) -> Markup:
    """Returns a cell of a table.

    Args:
        content: Its text or elements.
        value: Number to sort by.
        class_: CSS classes.
    """
    return element("td", content, data_value=None if value is None else f"{value:.9g}", class_=class_)


def _is_cell(content: Any) -> bool:
    return isinstance(content, Markup) and content.startswith("<td")
