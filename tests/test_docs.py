"""The pages: links, pictures, generated blocks, and all the code on them.

What stands in an HTML comment right before a fenced block says what is done with it:

    <!-- run: steps=2000 copies=8 --episodes=8 -->   with these settings and options in place of what is written
    <!-- file: meeting.py -->                        the block is also written to that file
    <!-- output -->                                  what the Python block before it prints
    <!-- session -->                                 `$ coterie ...` lines, each followed by what it says

Blocks of Python always run, one page in one namespace and one folder; blocks of bash with `coterie` run as well, and
have to be marked, so that nobody forgets to make them small.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

import coterie
from coterie import metrics, registry
from coterie.__main__ import main
from coterie.config import _CHANGEABLE as CHANGEABLE
from coterie.config import resolve
from coterie.overrides import primitive
from coterie.settings import flatten
from tinyruns import tiny

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
ALWAYS = dict.fromkeys(("eval.every", "checkpoint.every"), "1000")
ALWAYS |= {"eval.episodes": "8", "eval.copies": "8", "log.tensorboard": "false", "progress": "off", "device": "cpu"}
"""Settings of every run here, so that it takes a fraction of a second."""
OPTIONS: dict[str, Callable[[list[str]], bool]] = {
    "--episodes": lambda words: words[0] in {"evaluate", "play", "league", "exploit"},
    "--steps": lambda words: words[0] == "exploit",
    "--seconds": lambda words: words[0] == "bench",
    "--print": lambda words: "-m" in words,
}
"""Options that a mark may give, and which commands take them."""

_BLOCK = re.compile(r"((?:^<!-- [^\n]* -->\n)*)^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"<!-- (\w+)(?:: (.*?))? -->")
_LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)")
_PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its lines, and the marks before it."""

    language: str
    code: str
    marks: dict[str, str]

    @property
    def settings(self) -> dict[str, str]:
        """What the mark `run` gives, by key."""
        pairs = (word.partition("=") for word in self.marks.get("run", "").split())
        return {key: value for key, _, value in pairs}


def blocks(page: Path) -> list[Block]:
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [Block(language, code, dict(_MARK.findall(marks))) for marks, language, code in found]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """docs/generate.py as a module."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


@pytest.fixture
def own_registries(generate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page adds to algorithms and metrics is gone after it."""
    generate.metrics()  # imports whatever declares some, so that these stay
    monkeypatch.setattr(metrics, "_declared", dict(metrics._declared))
    monkeypatch.setattr(registry, "ALGOS", dict(registry.ALGOS))


# ---------------------------------------------------------------------------------------------------------- the pages


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_generated_blocks_are_as_the_code_has_them(page: Path, generate: ModuleType):
    text = page.read_text(encoding="utf-8")
    assert text == generate.filled(text), f"{name(page)} is behind the code: run `make docs`"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path):
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)}: {link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{name(page)}: there is no heading for {link}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_pictures_are_there_and_not_heavy(page: Path):
    for match in _PICTURE.findall(page.read_text(encoding="utf-8")):
        picture = page.parent / (match[0] or match[1])
        assert picture.exists(), f"{name(page)}: there is no picture {picture}"
        assert picture.stat().st_size < (500_000 if picture.suffix == ".gif" else 150_000)
        with Image.open(picture) as image:
            assert min(image.size) >= 200


def test_the_cooperative_worlds_tell_what_the_committed_results_are():
    text = (ROOT / "docs" / "environments" / "coop.md").read_text(encoding="utf-8")
    results = (ROOT / "benchmarks" / "results" / "learning.md").read_text(encoding="utf-8")
    found = {row.split(" | ")[0]: row.split(" | ") for row in re.findall(r"^\| (.*-.*) \|$", results, re.MULTILINE)}
    for world in ("escape", "baton"):
        cells = [found[f"{world}-{algo}"] for algo in ("poca", "coma", "ippo")]
        told = [f"{row[4].replace('**', '')}, last {row[5]}" for row in cells]
        assert f"| `{world}` | {' | '.join(told)} |" in text
        for algo in ("poca", "coma", "ippo", "mappo"):
            assert resolve([f"algo={algo}", f"env=coop/{world}"]).config.steps == 1_000_000, "the page says 1 M"


def test_every_page_can_be_reached_from_the_first_one():
    reached, coming = set(), [ROOT / "README.md"]
    while coming:
        page = coming.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        links = [link.partition("#")[0] for link in _LINK.findall(page.read_text(encoding="utf-8"))]
        coming += [(page.parent / link).resolve() for link in links if link and not link.startswith("http")]
    assert set(PAGES) <= reached


# ----------------------------------------------------------------------------------------------------------- the code


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_are_marked_to_run(page: Path):
    for block in blocks(page):
        if block.language == "bash" and re.search(r"^coterie ", block.code, re.MULTILINE):
            assert "run" in block.marks, f"{name(page)}: mark this block with <!-- run: ... -->:\n{block.code}"


def small(line: str, settings: dict[str, str]) -> list[str]:
    """The words of a command with the settings in place of its own, where it takes them."""
    words = shlex.split(line, comments=True)[1:]
    given = {key: value for key, value in settings.items() if not key.startswith("-")} | ALWAYS
    options = {key: value for key, value in settings.items() if key.startswith("-") and OPTIONS[key](words)}
    if words[0] == "resume":
        given["steps"] = str(2 * int(given["steps"]))
        given = {key: value for key, value in given.items() if key.startswith(CHANGEABLE)}
    elif words[0] not in {"train", "bench"}:
        given = {}
    kept = [word for word in words if word.partition("=")[0] not in given]
    for option, value in options.items():
        if option in kept:
            at = kept.index(option)
            del kept[at : at + 2]
        kept += [option, value] if value else [option]
    return [*kept, *(f"{key}={value}" for key, value in given.items())]


def run_python(block: Block, page: Path, namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    train = coterie.train

    def small_train(**settings: Any) -> Any:
        given = {key: primitive(value) for key, value in (block.settings | ALWAYS).items()}
        return train(**dict(flatten(settings)) | given)

    if "file" in block.marks:
        Path(block.marks["file"]).write_text(block.code)
    with monkeypatch.context() as patch:
        patch.setattr(coterie, "train", small_train)
        patch.setattr("coterie.plot.plot", lambda runs, out: [])
        exec(compile(block.code, name(page), "exec"), namespace)


def run_command(line: str, block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    words = small(line, block.settings)
    with monkeypatch.context() as patch:
        if words[0] in {"train", "resume"}:  # drawing the curves would take longer than the rest
            patch.setattr("coterie.plot.plot", lambda runs, out: [])
        assert main(words) == 0, shlex.join(words)


@pytest.mark.usefixtures("own_registries")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_the_code_on_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("coterie.schema.MOST_THREADS", 1)
    namespace: dict[str, Any] = {"__name__": "page"}
    printed = ""
    for block in blocks(page):
        if "session" in block.marks:
            for part in block.code.split("$ coterie ")[1:]:
                line, _, expected = part.partition("\n")
                main(shlex.split(line))
                said = capsys.readouterr()
                assert (said.out + said.err).split() == expected.split()
        elif block.language == "yaml" and "file" in block.marks:
            Path(block.marks["file"]).write_text(block.code)
        elif "output" in block.marks:
            assert printed.splitlines() == block.code.splitlines()
        elif block.language == "python":
            run_python(block, page, namespace, monkeypatch)
            printed = capsys.readouterr().out
        elif block.language == "bash" and "run" in block.marks:
            for line in block.code.replace("\\\n", " ").splitlines():
                if line.startswith("coterie "):
                    run_command(line, block, monkeypatch)
            capsys.readouterr()


# --------------------------------------------------------------------------------------------------------- the metrics


def test_runs_log_what_the_page_of_metrics_tells_and_nothing_else(tmp_path: Path):
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `([\w/]+)` \|", page, re.MULTILINE))
    demos = tmp_path / "demos.safetensors"
    assert main(["record", "--algo=random", "--env=probe/both", "--episodes=8", f"--out={demos}"]) == 0
    curious = ["rewards.icm.strength=0.1", "rewards.rnd.strength=0.1", f"rewards.gail.demos={demos}"]
    cloned = [f"imitation.demos={demos}", "imitation.strength=1", "imitation.until=1"]
    played = ["selfplay.opponents=uniform", "selfplay.every=60", "selfplay.games=4", "turns.every=100"]
    lessons = tmp_path / "lessons.yaml"
    lessons.write_text(
        "curriculum: {lessons: [{name: a, parameters: {speed: 1.0}, advance: {metric: steps, above: 100}}, "
        "{name: b, parameters: {speed: {uniform: [1.0, 1.5]}}}]}\n"
    )
    logged: set[str] = set()
    for run, settings in {
        "one": ["algo=mappo", "env=particle/simple_spread", f"--config={lessons}"],
        "two": ["algo=ippo", "env=particle/simple_tag", "teams.agent.algo=random"],
        "selfplay": ["algo=ippo", "env=particle/simple_tag", *played],
        "rewarded": ["algo=ippo", "env=probe/both", *curious, *cloned],
        **{name: [f"algo={name}", "env=probe/both"] for name in ("coma", "poca", "qmix", "ddpg", "td3", "sac")},
    }.items():
        windows = ("one", "two", "selfplay", "rewarded")
        small = set() if run in windows else {"algo.epochs", "algo.minibatches"}
        given = [s for s in tiny(*settings, "steps=300") if s.partition("=")[0] not in small]
        early = ["algo.learning_starts=10", "algo.batch=4"] if run in ("qmix", "ddpg", "td3", "sac") else []
        assert main(["train", *given, *early, f"out={tmp_path / run}"]) == 0
        for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines():
            logged |= set(json.loads(line))
    declared = {emitted: metrics.lookup(emitted) for emitted in logged}
    assert [emitted for emitted, metric in declared.items() if metric is None] == []
    rare = {"rollout/dropped"}  # only where a worker fails: tests/envs/test_workers.py
    assert {metric.name for metric in declared.values() if metric is not None} | rare == told
