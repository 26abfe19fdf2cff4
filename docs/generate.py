"""Writes what the pages take from the code (tables, sections and pictures), and the types of settings.

    python docs/generate.py              # tables, sections and pictures
    python docs/generate.py --text       # tables, sections and types only
    python docs/generate.py --check      # writes nothing; names the files that are out of date and exits with 1
    python docs/generate.py --notebooks  # executes the notebooks, which takes a minute
    python docs/generate.py --measure    # also the returns of untrained play, which takes some minutes

A block is everything between `<!-- generated: NAME -->` and `<!-- end -->`. A block of measured figures begins with
`<!-- measured: NAME -->` and changes only with `--measure`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_blocks"))

import exact_worlds  # noqa: E402
import notebooks  # noqa: E402
import particle_worlds  # noqa: E402
import program  # noqa: E402
import searches  # noqa: E402
import typed_settings  # noqa: E402
from markdown_tables import key_table  # noqa: E402
from PIL import Image  # noqa: E402

from coterie.algos import registry  # noqa: E402
from coterie.config.rewards import RewardsConfig  # noqa: E402
from coterie.config.wrappers import WrappersConfig  # noqa: E402
from coterie.envs.worlds.foraging.foraging import ForagingConfig  # noqa: E402
from coterie.envs.worlds.matrix.matrix_game import MatrixConfig  # noqa: E402
from coterie.envs.worlds.overcooked.overcooked import OvercookedConfig  # noqa: E402
from coterie.envs.worlds.traffic.junction import JunctionConfig  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
_BLOCK = re.compile(r"(<!-- (generated|measured): ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

BLOCKS: dict[str, Callable[[], str]] = {
    "alias-examples": program.alias_examples,
    "aliases-different": program.different_names,
    "aliases-exact": program.exact_aliases,
    "algorithm-keys": program.algorithm_keys,
    "algorithms": program.algorithms,
    "capabilities": program.capabilities,
    "check-env": program.check_env,
    "cli": program.cli,
    "commands": program.commands,
    "environments": program.environments,
    "errors": program.errors,
    "foraging-keys": partial(key_table, ForagingConfig, "env."),
    "job": program.job,
    "math-modules": program.math_modules,
    "matrix-games": exact_worlds.matrix,
    "matrix-keys": partial(key_table, MatrixConfig, "env."),
    "metrics": program.metrics,
    "overcooked-keys": partial(key_table, OvercookedConfig, "env."),
    "particle-baselines": particle_worlds.particle_baselines,
    "particle-keys": particle_worlds.particle_keys,
    "particle-scenarios": particle_worlds.particle_scenarios,
    "probe-table": exact_worlds.probe_table,
    "probes": exact_worlds.probes,
    "rewards-keys": partial(key_table, RewardsConfig, "rewards."),
    "run-keys": program.run_keys,
    "traffic-keys": partial(key_table, JunctionConfig, "env."),
    "tune-ranges": searches.ranges,
    "wrapper-keys": partial(key_table, WrappersConfig, "env.wrappers."),
}
"""Content of each block by name."""

for _family, _names in program.families().items():
    BLOCKS[f"{_family}-keys"] = lambda name=_names[0]: key_table(registry.algorithm(name).Config, "algo.")
    BLOCKS[f"{_family}-presets"] = lambda names=_names: program.presets(lambda base: base in names)
for _example in sorted((ROOT / "examples").glob("*.py")):
    BLOCKS[f"example-{_example.stem}"] = partial(program.example, _example.name)


_PROVENANCE = re.compile(r"PyTorch \d|python benchmarks/|[Ll]oad average|^Revisions?:")
_SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z`*])|(?<=\w), (?=measured by `)")


def results(path: Path) -> str:
    """Returns a file of results without its title, for a page in `docs/benchmarks`.

    The sentences that name machine, revision and command are folded at the end.
    """
    body, measured = _split(path)
    return body + _folded(measured)


def summary(path: Path) -> str:
    """Returns the text of a file of results before its table, and of the table its row of all, if there is one."""
    body, measured = _split(path)
    text, _, table = body.partition("\n|")
    head, rule, *rows = f"|{table}".splitlines()
    total = [row for row in rows if row.startswith("| **all** |")]
    shown = "\n".join([text, head, rule, *total, ""]) if total else text
    return shown + _folded(measured)


def _split(path: Path) -> tuple[str, list[str]]:
    """Returns the text of a file of results, and its sentences about how it was measured."""
    text = path.read_text(encoding="utf-8").partition("\n")[2]
    folder = "/".join(("../..", *path.parent.relative_to(ROOT).parts))
    text = re.sub(r"^(#+ )", r"#\1", re.sub(r"(!\[[^]]*\]\()", rf"\1{folder}/", text), flags=re.MULTILINE)
    kept: list[str] = []
    measured: dict[str, None] = {}
    for line in text.splitlines():
        whole = line.startswith(("|", "- ", "#", "!")) or not line
        sentences = [line] if whole or line.startswith("*Measured*") else _SENTENCE.split(line)
        found = [] if whole else [one for one in sentences if _PROVENANCE.search(one)]
        rest = " ".join(_ended(one) if found else one for one in sentences if one not in found)
        measured |= dict.fromkeys(one[:1].upper() + one[1:] for one in found)
        if rest or not found:
            kept.append(rest)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)) + "\n", list(measured)


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?", ":")) else f"{sentence}."


def _folded(sentences: list[str]) -> str:
    """Returns a folded block of sentences."""
    if not sentences:
        return ""
    text = "\n".join(sentences)
    return f'\n<details class="measured">\n<summary>Machine, version and command</summary>\n\n{text}\n\n</details>\n'


for _path in sorted((ROOT / "benchmarks" / "results").rglob("*.md")):
    _name = "-".join(_path.relative_to(ROOT / "benchmarks" / "results").with_suffix("").parts)
    BLOCKS[f"results-{_name}"] = partial(results, _path)
    BLOCKS[f"summary-{_name}"] = partial(summary, _path)


def pages() -> list[Path]:
    """All pages of the documentation."""
    docs = (path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)
    return [*sorted(ROOT.glob("*.md")), *sorted(docs)]


def filled(text: str, measure: bool = False) -> str:
    """The page with its blocks as the code has them now.

    Args:
        text: The page.
        measure: Replace measured blocks too.

    Raises:
        KeyError: For a block of an unknown name.
    """

    def block(match: re.Match[str]) -> str:
        start, kind, name, text, end = match.groups()
        if kind == "measured" and not measure:
            return match[0]
        content = program.with_differences(text) if name == "differences" else BLOCKS[name]()
        return f"{start}\n{content.strip()}\n\n{end}"

    return _BLOCK.sub(block, text)


def draw() -> list[Path]:
    """Writes pictures of the built-in worlds and returns their paths."""
    size = 2 * particle_worlds.SIZE
    return [
        _save(name, picture) for name, picture in (*particle_worlds.particle_pictures(), *exact_worlds.pictures(size))
    ]


def _save(name: str, picture: Any) -> Path:
    """Writes the picture of the environment `family/name`."""
    path = PICTURES / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", action="store_true", help="leave pictures as they are")
    parser.add_argument("--measure", action="store_true", help="measure the returns of untrained play again")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is out of date")
    parser.add_argument("--notebooks", action="store_true", help="execute the notebooks and store their outputs")
    given = parser.parse_args(argv)
    if given.notebooks:
        for page in notebooks.pages():
            notebooks.write(page)
            print(page.relative_to(ROOT))
        return 0
    stale = 0
    for page in (*pages(), typed_settings.FILE):
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        new = typed_settings.source() if page == typed_settings.FILE else filled(text, given.measure)
        if new != text:
            stale += 1
            if not given.check:
                page.write_text(new, encoding="utf-8")
            print(page.relative_to(ROOT))
    for picture in [] if given.text or given.check else draw():
        print(picture.relative_to(ROOT))
    return int(given.check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
