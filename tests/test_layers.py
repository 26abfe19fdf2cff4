"""Packages name no module of a package above them, in strings either: import-linter sees import statements only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "coterie"
MODULE = re.compile(r"coterie\.(\w+)(\.\w+)*(:\w+)?\.?")


def layers() -> dict[str, int]:
    """Returns the height of each package, from the contract that import-linter checks."""
    found = re.search(
        r'containers = \["coterie"\]\nlayers = (\[.*?\n\])', (ROOT / "pyproject.toml").read_text(), re.DOTALL
    )
    assert found is not None
    names = ["__main__", *ast.literal_eval(found[1])]
    return {package.strip(): -i for i, layer in enumerate(names) for package in layer.split("|")}


def named_modules(code: str) -> Iterator[tuple[int, str]]:
    """Yields the line and package of every string, other than a docstring, that is the name of a module of Coterie."""
    if not re.search(r"[\"']coterie\.", code):  # it need not be parsed
        return
    tree = ast.parse(code)
    comments = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in comments:
            found = MODULE.fullmatch(node.value)
            if found is not None:
                yield node.lineno, found[1]


@pytest.mark.parametrize("package", [name for name in layers() if name != "__main__"])
def test_a_package_names_no_module_of_a_package_above_it(package: str):
    heights = layers()
    upward = [
        f"{file.relative_to(SOURCE)}:{line} names coterie.{named}"
        for file in sorted((SOURCE / package).rglob("*.py"))
        for line, named in named_modules(file.read_text(encoding="utf-8"))
        if heights.get(named, heights[package]) > heights[package]
    ]
    assert not upward


@pytest.mark.parametrize(
    "code",
    [
        'import_module("coterie.reports.run_table").runs()',
        'TABLE = {"ppo": "coterie.algos.ppo:PPO"}',
        '_HERE = "coterie.envs"\nf"{_HERE}.x"',
        'f"coterie.envs.{name}"',
    ],
)
def test_names_in_calls_tables_and_prefixes_are_found(code: str):
    assert list(named_modules(code))
    assert not list(named_modules('"""coterie.envs.make"""\nhelp("See coterie.envs.make. ")'))


def test_only_the_public_names_are_imported_by_name():
    files = {file.relative_to(SOURCE).as_posix(): file.read_text(encoding="utf-8") for file in SOURCE.rglob("*.py")}
    own = {name for name, code in files.items() if re.search(r"import_module\(f?[\"']coterie\b", code)}
    assert not own
    assert "import_module(_LAZY[name])" in files["__init__.py"]
