"""Wording: user-visible text uses the field's terms and American spelling."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from places import ROOT

SOURCES = sorted((ROOT / "src").rglob("*.py"))
PRESETS = sorted((ROOT / "src").rglob("*.yaml"))
PAGES = [
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md") if (ROOT / name).exists()),
]

OPENING = re.compile(r"(What|Whether|Who|Whom|Whose|Where|How|Says|Tells|Hears)\b")
"""Words that a docstring must not begin with: name the thing instead ("True if ...", "Number of ...")."""

PRIVATE = {
    r"mend(s|ed|ing)?": "fix",
    r"anew": "again",
    r"to the bit": "bit-for-bit",
    r"go(es)? on": "continue, resume",
    r"went on": "continued",
    r"whoever": "the user, the caller",
    r"as its package has": "defined by the installed package",
    r"closing rows?": "final timestep",
    r"(every|each|all|its|of) cop(y|ies)(?! (of|to|the|from|it|them)\b)": "environment",
    r"(is|are|was|were|be|been) paid": "reward",
    r"who lives|lives in (a|the) row|lived through": "is alive; rollout",
    r"stands? (behind|beside|before)": "follows, is next to",
    r"lies? (behind|beside|before)": "is next to, precedes",
    r"comes? to nothing|came to": "result",
    r"as many as come": "at most",
    r"befor(e|hand) anybody": "before",
    r"rows? of a window|window of rows": "rollout",
    r"by turns": "alternating",
    r"(is|are) judged": "is evaluated",
    r"weighs? up": "evaluates",
    r"tells? (of|what|how|whether|who)": "describes, reports",
    r"says? (of|what|how|whether|who)": "states, reports",
    r"at hand": "available",
    r"so many": "a number of",
    r"by itself alone|alike": "equal",
    r"not goals": "non-goals",
}
"""Patterns of the wording of version 0.1, and what to write instead."""

BRITISH = re.compile(
    r"\b(\w*(?:normal|initial|optim|random|general|regular|serial|synchron|summar|recogn|organ|parameter|priorit|minim|"
    r"maxim|visual)is(?:e|es|ed|er|ers|ing|ation|ations)|behaviours?|colour(?:s|ed|ing)?|neighbour(?:s|ing)?|centres?|"
    r"favour(?:s|ed)?|modell(?:ed|ing)|labell(?:ed|ing)|cancell(?:ed|ing)|grey|licence|analyse[ds]?|catalogue|whilst)\b",
    re.IGNORECASE,
)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings of modules, classes, functions and fields, with their line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.strip()


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Text that users read: docstrings, and string literals that are sentences."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a page outside of code blocks and inline code."""
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, re.sub(r"`[^`]*`", "", line)


def private_words(text: str) -> list[str]:
    """Patterns of `PRIVATE` in the text, each with a better word."""
    words = " ".join(text.split())
    return [
        f"'{match[0]}' (write: {better})"
        for pattern, better in PRIVATE.items()
        for match in re.finditer(rf"\b(?:{pattern})\b", words, re.IGNORECASE)
    ]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_docstrings_name_the_thing_they_describe(path: Path):
    assert [f"{line}: {text.splitlines()[0]}" for line, text in docstrings(path) if OPENING.match(text)] == []


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_source_text_uses_the_terms_of_the_field(path: Path):
    assert [f"{line}: {word}" for line, text in texts(path) for word in private_words(text)] == []


@pytest.mark.parametrize("path", [*PAGES, *PRESETS], ids=name)
def test_pages_use_the_terms_of_the_field(path: Path):
    assert [f"{line}: {word}" for line, text in prose(path) for word in private_words(text)] == []


@pytest.mark.parametrize("path", [*SOURCES, *PAGES, *PRESETS], ids=name)
def test_spelling_is_american(path: Path):
    lines = texts(path) if path.suffix == ".py" else prose(path)
    assert [f"{line}: {match[0]}" for line, text in lines for match in BRITISH.finditer(text)] == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("The rows of a window are dealt anew", 2),
        ("Resumes bit-for-bit", 0),
        ("every copy is paid", 2),
        ("each copy of the file", 0),
    ],
)
def test_private_words_are_found(text: str, count: int):
    assert len(private_words(text)) == count


@pytest.mark.parametrize(
    ("text", "found"), [("normalised", True), ("normalized", False), ("behaviour", True), ("color", False)]
)
def test_british_spelling_is_found(text: str, found: bool):
    assert bool(BRITISH.search(text)) == found
