"""The documentation: links, images, generated blocks, and all code on the pages.

HTML comments directly before a fenced block control how the block is tested:

    <!-- run: steps=2000 num_envs=8 --episodes=8 -->   runs with these settings and options instead of the given ones
    <!-- file: meeting.py -->                          is also written to this file
    <!-- output -->                                    is the output of the Python block before it

Python blocks always run, all blocks of a page in one namespace and one folder. Bash blocks with `coterie` commands run
as well. They need a mark, so that each of them runs for only a few steps. `coterie train` trains for one rollout
without evaluations if its page does not use the run, and only builds it if others train with its environment and its
settings, too. Algorithms and built-in worlds train in tests of their own, each with its settings, as do ranks and
workers.
"""

from __future__ import annotations

import functools
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
from sphinx.errors import ExtensionError

import coterie
from coterie.__main__ import main
from coterie.algos import registry
from coterie.assembly import aliases
from coterie.assembly.build import build
from coterie.assembly.resolve import CHANGEABLE, resolve
from coterie.checks.environment import contract
from coterie.config import messages
from coterie.config.overrides import parse_primitive
from coterie.config.schema import RunConfig
from coterie.config.sources import flatten
from coterie.core import metrics
from coterie.envs import registry as environments
from generated import check_generated_blocks
from places import ROOT
from tinyruns import Process, tiny

PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts),
]
ALWAYS = dict.fromkeys(("eval.every", "checkpoint.every"), "1000")
ALWAYS |= {
    "eval.episodes": "8",
    "eval.num_envs": "8",
    "eval.min_episodes": "8",
    "log.tensorboard": "false",
    "progress": "off",
    "device": "cpu",
}
"""Settings of every run on a page that its mark does not set, so that it takes a fraction of a second."""
OPTIONS: dict[str, Callable[[list[str]], bool]] = {
    "--episodes": lambda words: words[0] in {"evaluate", "play", "league", "exploit"},
    "--steps": lambda words: words[0] == "exploit",
    "--format": lambda words: words[0] == "export" and "--format" not in words,
    "--seconds": lambda words: words[0] == "bench",
    "--algo": lambda words: "--all" in words,
    "--print": lambda words: "-m" in words or words[0] == "reproduce",
    "--no-videos": lambda words: words[0] == "report",
}
"""Options that a mark may set, and the commands that accept them."""

_BLOCK = re.compile(r"((?:^<!-- [^\n]* -->\n)*)^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"<!-- (\w+)(?:: (.*?))? -->")
_LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)")
_TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")


@dataclass(frozen=True)
class Block:
    """A fenced block with its language and marks."""

    language: str
    code: str
    marks: dict[str, str]

    @property
    def settings(self) -> dict[str, str]:
        """Settings and options of the mark `run`."""
        pairs = (word.partition("=") for word in self.marks.get("run", "").split())
        return {key: value for key, _, value in pairs}


def blocks(page: Path) -> list[Block]:
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [Block(language, code, dict(_MARK.findall(marks))) for marks, language, code in found]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """The module docs/generate.py."""
    return load("docs/generate.py")


def load(path: str) -> ModuleType:
    """Imports a Python file as a module and restores the search path."""
    before = list(sys.path)
    try:
        spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


@pytest.fixture
def own_registries(generate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes algorithms and metrics that a page adds."""
    generate.program.metrics()  # imports all modules that declare metrics, so that these stay
    monkeypatch.setattr(metrics, "_declared", dict(metrics._declared))
    monkeypatch.setattr(registry, "ALGOS", dict(registry.ALGOS))


# -------------------------------------------------------------------------------------------------------------- pages


def test_generated_blocks_match_the_code(tmp_path: Path):
    """In its own process, where no other test has declared metrics or registered algorithms."""
    code, output = Process(tmp_path, prepare=check_generated_blocks).end()
    assert code == 0, f"out of date, run `make pages`: {output}"


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, generated as by GitHub."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def test_links_have_a_target():
    links = [(page, link) for page in PAGES for link in _LINK.findall(page.read_text(encoding="utf-8"))]
    for page, link in links:
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)}: {link} does not exist"
        if anchor:
            assert anchor in anchors(target), f"{name(page)}: no heading for {link}"


def test_images_exist_and_are_small():
    matches = [(page, match) for page in PAGES for match in _PICTURE.findall(page.read_text(encoding="utf-8"))]
    for page, match in matches:
        picture = page.parent / (match[0] or match[1])
        assert picture.exists(), f"{name(page)}: no image {picture}"
        assert picture.stat().st_size < (500_000 if picture.suffix == ".gif" else 150_000)
        if picture.suffix != ".svg":
            with Image.open(picture) as image:
                assert min(image.size) >= 200


def test_the_page_of_cooperative_environments_shows_the_committed_results():
    text = (ROOT / "docs" / "environments" / "coop.md").read_text(encoding="utf-8")
    results = (ROOT / "benchmarks" / "results" / "defaults_presets.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `coop/(\w+)` \| (\w+) \| \S+ \| ([^|]*) \|", results, re.MULTILINE)
    found = {(world, algo): default for world, algo, default in rows}
    for world in ("escape", "baton", "pushblock"):
        shown = [found[world, algo] for algo in ("poca", "coma", "mappo", "ippo")]
        assert f"| `{world}` | {' | '.join(shown)} |" in text
    baselines = json.loads((ROOT / "benchmarks" / "results" / "baselines.json").read_text(encoding="utf-8"))["coop"]
    for world, policies in baselines.items():
        shown = [f"{policies[name]['return']:.3f} ± {policies[name]['error']:.3f}" for name in ("random", "script")]
        assert f"| `{world}` | {' | '.join(shown)} | {policies['script']['steps']:.0f} |" in text


def test_every_page_is_reachable_from_the_readme():
    reached, queue = set(), [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        text = page.read_text(encoding="utf-8")
        links = [link.partition("#")[0] for link in _LINK.findall(text)]
        entries = [line for tree in _TOCTREE.findall(text) for line in tree.splitlines()]
        named = [entry for entry in entries if entry and not entry.startswith(":")]
        links += [f"{entry}.md" for entry in named if not (page.parent / f"{entry}.ipynb").exists()]
        queue += [(page.parent / link).resolve() for link in links if link and not link.startswith("http")]
    assert set(PAGES) <= reached


def test_pages_mention_no_folders_of_a_machine():
    for page in PAGES:
        assert re.findall(r"/(?:work|home|root|tmp)/\S*", page.read_text(encoding="utf-8")) == [], name(page)


def test_the_reference_lists_the_public_names():
    pages = ("python-api.md", "extension-points.md")
    text = "".join((ROOT / "docs" / "reference" / page).read_text(encoding="utf-8") for page in pages)
    documented = set(re.findall(r"^\.\. auto\w+:: (?:\w+\.)*(\w+)$", text, re.MULTILINE))
    assert set(coterie.__all__) - {"__version__"} <= documented


def test_the_metrics_of_ml_agents_have_a_declared_counterpart_or_none():
    text = (ROOT / "docs" / "migration" / "ml-agents.md").read_text(encoding="utf-8")
    section = text.partition("## Metrics")[2]
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(r"^\|.*\|$", section, re.MULTILINE)
    ]
    theirs = [one for row in rows[2:] for one in re.findall(r"`([^`]*)`", row[0])]
    assert len(theirs) == len(set(theirs))
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    declared = set(re.findall(r"^\| `([\w/]+)` \|", page, re.MULTILINE))
    for _, ours, difference in rows[2:]:
        names = re.findall(r"`([^`]*)`", ours)
        assert names or ours == "none", ours
        names += re.findall(r"`([a-z]+/[^`]*)`", difference)
        assert {re.sub(r"/[A-Z]+$", "", name) for name in names} <= declared


def test_equations_become_mathml_and_unknown_commands_are_errors():
    extension = load("docs/_extensions/equations.py")
    assert "<mi>&#x003C1;</mi>" in extension.mathml(r"\rho A", "inline")
    for wrong in (r"\unknowncommand x", r"\begin{aligned} a &= b \end{aligned}"):
        with pytest.raises(ExtensionError, match="cannot be typeset"):
            extension.mathml(wrong, "block")


def test_moving_pictures_are_small_and_have_a_run_that_repeats_them(monkeypatch: pytest.MonkeyPatch):
    animations = load("docs/animations.py")
    pictures = {path.stem: path for path in animations.FOLDER.iterdir()}
    assert pictures.keys() == animations.ANIMATIONS.keys()
    for picture in pictures.values():
        assert picture.stat().st_size < 400_000
        with Image.open(picture) as image:
            assert image.n_frames > 20
            assert max(image.size) == animations.SIZE


def test_equations_in_docstrings_are_typeset_and_other_blocks_stay_as_they_are():
    extension = load("docs/_extensions/docstrings.py")
    lines = ["Loss of |x|.", "", "    L   = |x| u_-i", "    u_t <- x", "", "For example", "", "    f(x=1)", "", "Args:"]
    marked = extension.escape_markup(extension.mark_equations([*lines, "    x: Bound a*b."]))
    loss = [
        "Loss of \\|x\\|.",
        "",
        ".. math::",
        "",
        "    L = |x| u_{-i}",
        "",
        ".. math::",
        "",
        r"    u_t \leftarrow  x",
        "",
    ]
    assert marked == [*loss, "For example", "", "::", "", "    f(x=1)", "", "Args:", "    x: Bound a\\*b."]


@pytest.mark.parametrize(
    ("plain", "typeset"),
    [
        ("A_t = r_t + gamma (1 - boundary_t) A_{t+1}", r"A_t = r_t + \gamma  (1 - \text{boundary}_t) A_{t+1}"),
        ("L = sum_k log pi_k;  H = 0", r"L = \sum _k\ \operatorname{log}\ \pi _k; \quad H = 0"),
        ("L_policy = N(u; mean),   a = low", r"L_{\text{policy}} = N(u; \operatorname{mean}), \quad a = \text{low}"),
        ("z = 1 / sqrt(other_error^2 + b)", r"z = 1 / \sqrt  {\text{other error}^2 + b}"),
        ("x = V(s') where valid_t, else 0", r"x = V(s')\ \text{where}\ \text{valid}_t, \text{else}\ 0"),
    ],
)
def test_plain_equations_become_latex_that_can_be_typeset(plain: str, typeset: str):
    assert load("docs/_extensions/docstrings.py").latex(plain) == typeset
    assert load("docs/_extensions/equations.py").mathml(typeset, "block").startswith("<math")


# --------------------------------------------------------------------------------------------------------------- code


def test_commands_are_marked_to_run():
    marked = [(page, block) for page in PAGES for block in blocks(page)]
    for page, block in marked:
        if block.language == "bash" and re.search(r"^coterie ", block.code, re.MULTILINE):
            assert "run" in block.marks, f"{name(page)}: mark this block with <!-- run: ... -->:\n{block.code}"


def small(line: str, settings: dict[str, str]) -> list[str]:
    """Returns the arguments of a command. Settings of the mark that the command accepts replace its own."""
    words = shlex.split(line, comments=True)[1:]
    given = ALWAYS | {key: value for key, value in settings.items() if not key.startswith("-")}
    options = {key: value for key, value in settings.items() if key.startswith("-") and OPTIONS[key](words)}
    if words[0] == "resume":
        given["steps"] = str(2 * int(given["steps"]))
        given = {key: value for key, value in given.items() if key.startswith(CHANGEABLE)}
    elif words[0] not in {"train", "bench"}:
        given = {}
    else:
        given |= dict.fromkeys(("algo.epochs",) if all(has_epochs(algo) for algo in algorithms(words)) else (), "1")
    kept = [word for word in words if word.partition("=")[0] not in given]
    options |= {"--size": "64"} if "--video" in words else {}
    for option, value in options.items():
        if option in kept:
            at = kept.index(option)
            del kept[at : at + 2]
        kept += [option, value] if value else [option]
    return [*kept, *(f"{key}={value}" for key, value in given.items())]


def algorithms(words: list[str]) -> set[str]:
    """Returns the algorithms that a command names, or `--config` for those of a file."""
    named = [word.partition("=") for word in words]
    found = {name for key, _, names in named if key == "algo" or key.endswith(".algo") for name in names.split(",")}
    return (
        {"--config"} if "--config" in words else found if any(key == "algo" for key, *_ in named) else {*found, "mappo"}
    )


def has_epochs(algo: str) -> bool:
    known = algo in registry.ALGOS or algo in registry.VARIANTS
    return known and "epochs" in registry.algorithm(algo).Config.model_fields


def commands(block: Block) -> list[str]:
    """Returns the lines of a Bash block that run."""
    lines = block.code.replace("\\\n", " ").splitlines() if block.language == "bash" and "run" in block.marks else []
    return [line for line in lines if line.startswith("coterie ")]


def code(block: Block) -> list[str]:
    """Returns the code of a Python block, unless it is an example, which runs in `test_examples.py`."""
    example = ROOT / "examples" / block.marks.get("file", "none")
    is_example = example.exists() and example.read_text() == block.code
    return [block.code] if block.language == "python" and not is_example else []


def parts(page: Path) -> list[str]:
    """Returns the commands and the Python code of a page that run, in order."""
    return [part for block in blocks(page) for part in commands(block) or code(block)]


@functools.cache
def unused() -> set[tuple[str, str]]:
    """Returns page and line of the commands whose run their page does not use later."""
    found: set[tuple[str, str]] = set()
    for page in PAGES:
        for i, line in enumerate(given := parts(page)):
            out, later = re.search(r" out=(\S+)", line), "\n".join(given[i + 1 :])
            is_used = (out and out[1] in later) or re.search(r"\bruns\b(?!/)", later)
            if line.startswith("coterie train ") and " -m " not in line and not is_used:
                found.add((name(page), line))
    return found


@functools.cache
def repeated() -> set[tuple[str, str]]:
    """Returns page and line of the commands that train as others do, without a later use of their run."""
    seen = {("env", name) for name in environments.FAMILIES}
    others: list[tuple[tuple[str, str], set[tuple[str, str]]]] = []
    for page in PAGES:
        for line in parts(page):
            words = small(line, {"steps": "600"}) if line.startswith("coterie train ") else []
            features = {found for word in words[1:] if (found := feature(*word.partition("=")[::2])) is not None}
            if (name(page), line) in unused() and not any(word.startswith("-") for word in words):
                others.append(((name(page), line), features))
            else:
                seen |= features
    found: set[tuple[str, str]] = set()
    for place, features in others:
        if features <= seen:
            found.add(place)
        seen |= features
    return found


def feature(key: str, value: str) -> tuple[str, str] | None:
    """Returns what a setting stands for: a family of environments, own code, or its key; None if it trains in other
    tests, such as examples.
    """
    if ":" in value:
        return None if (ROOT / "examples" / f"{value.partition(':')[0]}.py").exists() else (key, value)
    if key in {*ALWAYS, "steps", "num_envs", "out", "seed", "algo"} or key.startswith(("algo.", "env.")):
        return None
    return (key, value.partition("/")[0]) if key == "env" else (key, "")


def run_python(block: Block, page: Path, namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    train, resume = coterie.train, coterie.resume
    steps = block.settings.get("steps", "600")

    def small_resume(run: Any, **settings: Any) -> Any:
        return resume(run, **(settings | {"steps": 2 * int(steps)} if "steps" in settings else settings))

    def small_train(**settings: Any) -> Any:
        given = {key: parse_primitive(value) for key, value in (ALWAYS | block.settings).items()}
        if isinstance(settings.get("algo"), str) and has_epochs(settings["algo"]):
            given["algo.epochs"] = 1
        return train(**dict(flatten(settings)) | given)

    if "file" in block.marks:
        Path(block.marks["file"]).write_text(block.code)
    if not code(block):
        return
    with monkeypatch.context() as patch:
        patch.setattr(coterie, "train", small_train)
        patch.setattr(coterie, "resume", small_resume)
        patch.setattr(sys, "argv", [name(page), steps])  # examples read the steps from it
        exec(compile(block.code, name(page), "exec"), namespace)


def run_command(line: str, block: Block, page: Path) -> None:
    settings = block.settings
    if (name(page), line) in unused():
        settings |= {} if "algo.learning_starts" in settings else {"steps": "1"}
        settings |= {} if "eval/" in page.read_text(encoding="utf-8") else {"eval.every": "0"}
    words = small(line, settings)
    if any(word.startswith(("ranks=", "workers.")) for word in words):
        resolve(words[1:])
        return
    if (name(page), line) in repeated():
        build(resolve(words[1:]).config).close()
        return
    assert main(words) == 0, shlex.join(words)


@pytest.mark.slow
@pytest.mark.usefixtures("own_registries")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_the_code_on_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("coterie.core.process.MAX_DEFAULT_THREADS", 1)
    monkeypatch.setattr(contract, "check", functools.partial(contract.check, steps=30))
    monkeypatch.setattr("coterie.checks.environment.check_env._STEPS", 80)
    monkeypatch.setattr("coterie.checks.environment.check_env._COMPARED_STEPS", 30)
    namespace: dict[str, Any] = {"__name__": "page"}
    printed = ""
    for block in blocks(page):
        if block.language == "yaml" and "file" in block.marks:
            Path(block.marks["file"]).write_text(block.code)
        elif "output" in block.marks:
            assert printed.splitlines() == block.code.splitlines()
        elif block.language == "python":
            run_python(block, page, namespace, monkeypatch)
            printed = capsys.readouterr().out
        else:
            for line in commands(block):
                run_command(line, block, page)
            capsys.readouterr()


# ------------------------------------------------------------------------------------------------------------- metrics


@pytest.mark.slow
def test_runs_log_exactly_the_documented_metrics(tmp_path: Path):
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `([\w/]+)` \|", page, re.MULTILINE))
    demos = tmp_path / "demos.safetensors"
    assert main(["record", "--algo=random", "--env=probe/both", "--episodes=8", f"--out={demos}"]) == 0
    curious = ["rewards.icm.weight=0.1", "rewards.rnd.weight=0.1", f"rewards.gail.demos={demos}"]
    cloned = [f"imitation.demos={demos}", "imitation.weight=1", "imitation.end_fraction=1"]
    played = [
        "selfplay.opponents=uniform",
        "selfplay.snapshot_interval=60",
        "selfplay.rating_episodes=4",
        "alternate.every=100",
    ]
    lessons = tmp_path / "lessons.yaml"
    lessons.write_text(
        "curriculum: {lessons: [{name: a, parameters: {speed: 1.0}, advance: {metric: steps, above: 100}}, "
        "{name: b, parameters: {speed: {uniform: [1.0, 1.5]}}}]}\n"
    )
    logged: set[str] = set()
    for run, settings in {
        "one": ["algo=mappo", "env=particle/simple_spread", f"--config={lessons}"],
        "selfplay": ["algo=ippo", "env=particle/simple_tag", *played],
        "signals": ["algo=poca", "env=probe/both", *curious, *cloned],
        "groups": ["algo=poca", "env=probe/sum"],
        "values": ["algo=pqn_vdn", "env=probe/both"],
        **{name: [f"algo={name}", "env=probe/both"] for name in ("coma", "hatrpo", "magpo", "ddpg", "sac")},
    }.items():
        fields = registry.algorithm(settings[0].removeprefix("algo=")).Config.model_fields
        small = {f"algo.{field}" for field in ("epochs", "num_minibatches")} - {f"algo.{field}" for field in fields}
        steps, every = ("200", "200") if run in ("one", "selfplay", "groups") else ("80", "0")
        given = tiny(*settings, f"steps={steps}", f"eval.every={every}")
        given = [setting for setting in given if setting.partition("=")[0] not in small]
        early = ["algo.learning_starts=10", "algo.batch_size=4"] if run in ("ddpg", "sac") else []
        assert main(["train", *given, *early, f"out={tmp_path / run}"]) == 0
        for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines():
            logged |= set(json.loads(line))
    declared = {emitted: metrics.lookup(emitted) for emitted in logged}
    assert [emitted for emitted, metric in declared.items() if metric is None] == []
    rare = {"rollout/dropped"}  # only if a worker fails
    rare |= {"time/exchange_share", "time/exchange_ms", "time/exchange_bytes"}  # only with several ranks
    assert {metric.name for metric in declared.values() if metric is not None} | rare == documented


def test_names_on_migration_pages_are_answered_by_the_program():
    """Each is a setting of Coterie, accepted for one, or explained; none gets the nearest name instead."""
    known = {key.rpartition(".")[2] for key in messages.leaf_fields(RunConfig)}
    known |= {field for algo in registry.ALGOS for field in registry.algorithm(algo).Config.model_fields}
    for page in (ROOT / "docs" / "migration").glob("*.md"):
        table = (
            page.read_text(encoding="utf-8").partition("<!-- generated: differences -->")[2].partition("<!-- end")[0]
        )
        assert table or page.name == "index.md", page
        firsts = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        names = {name for cell in firsts for name in re.findall(r"`([\w.]+)[^`]*`", cell) if "." not in name}
        unknown = {name for name in names if not aliases.targets(name)} - known - aliases.DIFFERENT.keys()
        assert unknown <= ELSEWHERE, f"{page.name}: {sorted(unknown)}"


ELSEWHERE = {"min_lesson_length", "signal_smoothing", "self_play", "agent_mask"}
"""Names on these pages that no command line has: keys of lessons, a section, a variable in code."""
