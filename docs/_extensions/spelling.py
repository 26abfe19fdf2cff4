"""Sphinx extension that checks the spelling of all prose, API docstrings included.

Words are looked up in the English dictionary of pyspellchecker and in a word list of the project, one word per line.
Code, literals, signatures, URLs, and words with digits, underscores or inner capitals are skipped. An unknown word is
a warning, which `make docs` turns into an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from spellchecker import SpellChecker
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

SKIPPED = (
    nodes.literal,
    nodes.literal_block,
    nodes.comment,
    nodes.raw,
    nodes.FixedTextElement,
    addnodes.desc_signature,
    addnodes.literal_emphasis,
    addnodes.literal_strong,
    addnodes.index,
)
_WORD = re.compile(r"(?<![\w./@#-])[A-Za-z]+(?:['\u2019][a-z]+)?(?![\w/@]|\.\w)")


class Dictionary:
    """English words and those of the word list."""

    def __init__(self, word_list: Path):
        self._checker = SpellChecker(language="en")
        lines = word_list.read_text(encoding="utf-8").splitlines()
        self._own = {line.strip().lower() for line in lines if line.strip() and not line.startswith("#")}

    def unknown(self, text: str) -> list[str]:
        """Words of the text that are in neither list."""
        found = (word for word in _words(text) if not self._knows(word.lower()))
        return list(dict.fromkeys(found))

    def _knows(self, word: str) -> bool:
        return any(form in self._own or form in self._checker for form in _forms(word))


def _words(text: str) -> Iterator[str]:
    for part in re.split(r"[-\u2013\u2014\s]+", text):
        for match in _WORD.finditer(part):
            word = match[0]
            if len(word) > 2 and not any(letter.isupper() for letter in word[1:]):
                yield word.replace("\u2019", "'")


def _forms(word: str) -> Iterator[str]:
    """The word itself and what a regular ending was added to."""
    yield word
    yield word.removesuffix("'s")
    stem = word.removesuffix("'s").removesuffix("s")
    yield stem
    for prefix in ("re", "un", "non", "pre", "multi"):
        if stem.startswith(prefix) and len(stem) > len(prefix) + 3:
            yield stem[len(prefix) :]


def _is_skipped(node: nodes.Node) -> bool:
    """True for code, and for references to Python objects, which contain their name twice until they are resolved."""
    return isinstance(node, SKIPPED) or (isinstance(node, addnodes.pending_xref) and node.get("refdomain") == "py")


def _prose(doctree: nodes.document) -> Iterator[tuple[nodes.Node, str]]:
    def visit(node: nodes.Node) -> Iterator[tuple[nodes.Node, str]]:
        if _is_skipped(node):
            return
        if isinstance(node, nodes.TextElement):
            parts = [str(text) for child in node.children for text in _texts(child)]
            yield node, "".join(parts)
        for child in node.children:
            if not isinstance(node, nodes.TextElement):
                yield from visit(child)

    yield from visit(doctree)


def _texts(node: nodes.Node) -> Iterator[str]:
    if _is_skipped(node):
        yield " "
    elif isinstance(node, nodes.Text):
        yield node.astext()
    else:
        for child in node.children:
            yield from _texts(child)


def check(app: Sphinx, doctree: nodes.document) -> None:
    """Warns about unknown words of one page."""
    if not hasattr(app, "spelling_dictionary"):
        app.spelling_dictionary = Dictionary(Path(app.config.spelling_word_list))
    dictionary: Dictionary = app.spelling_dictionary
    for node, text in _prose(doctree):
        for word in dictionary.unknown(text):
            logger.warning("unknown word '%s' (add it to the word list if it is right)", word, location=node)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("spelling_word_list", "", "env", [str])
    app.connect("doctree-read", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
