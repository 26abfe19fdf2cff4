"""Sphinx extension that lets a section name the words under which the search finds it first.

    ## Stop a run
    <!-- search: interrupt, cancel -->

The terms become entries of the index, which the search prefers to words in the text. GitHub does not show the comment.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

_MARK = re.compile(r"\s*<!-- search: (.*?) -->\s*")


class SearchTerms(SphinxTransform):
    """Replaces comments with search terms by entries of the index for their section."""

    default_priority = 400  # before Sphinx collects the index

    def apply(self, **kwargs: Any) -> None:
        for comment in list(self.document.findall(nodes.raw)):
            marked = _MARK.fullmatch(comment.astext())
            if marked:
                place = self._anchor(comment)
                entries = [("single", term.strip(), place, "main", None) for term in marked[1].split(",")]
                comment.replace_self(addnodes.index(entries=entries))

    def _anchor(self, comment: nodes.raw) -> str:
        """Returns the id of the section of a comment; empty for the page itself."""
        section = comment.parent
        while section is not None and not isinstance(section, nodes.section):
            section = section.parent
        if section is None or isinstance(section.parent, nodes.document):
            return ""
        return section["ids"][0]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(SearchTerms)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
