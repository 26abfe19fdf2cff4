"""Regenerates what the pages take from the code: tables, and the pictures of worlds.

    python docs/generate.py              # tables and pictures
    python docs/generate.py --measure    # the returns of untrained play as well, some minutes

A block stands between `<!-- generated: NAME -->` and `<!-- end -->`; one that holds measured figures begins with
`<!-- measured: NAME -->` and changes only when asked for.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import annotated_types
import known
import torch
from PIL import Image
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from scenarios import SCENARIOS, Scenario

import coterie
from coterie import registry, settings
from coterie.cli_list import algorithm_rows, environment_rows
from coterie.config import resolve
from coterie.envs.matrix.game import MatrixConfig
from coterie.envs.particle.task import ParticleConfig
from coterie.envs.world import WorldEnv
from coterie.envs.wrappers.config import WrappersConfig
from coterie.messages import leaf_fields, show
from coterie.origins import to_yaml
from coterie.rewards.config import RewardsConfig
from coterie.schema import RunConfig
from coterie.types import Action, EnvSpec

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
SIZE = 270
EPISODES = 10_000
_BLOCK = re.compile(r"(<!-- (generated|measured): ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """Every page of the documentation."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str, measure: bool = False) -> str:
    """The page with its blocks as the code has them now. KeyError for a block of an unknown name."""

    def block(match: re.Match[str]) -> str:
        start, kind, name, _, end = match.groups()
        if kind == "measured" and not measure:
            return match[0]
        return f"{start}\n{BLOCKS[name]().strip()}\n\n{end}"

    return _BLOCK.sub(block, text)


# ------------------------------------------------------------------------------------------------------------ writing


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "\n".join(
        ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in lines)]
    )


def _allowed(field: FieldInfo) -> str:
    """The values that a field takes, in words: its choices or its bounds."""
    choices = [word for part in _alternatives(field.annotation) for word in _choices(part)]
    if choices:
        return ", ".join(f"`{word}`" for word in choices)
    words = []
    signs = ((annotated_types.Ge, "ge", "≥"), (annotated_types.Gt, "gt", ">"))
    signs += ((annotated_types.Le, "le", "≤"), (annotated_types.Lt, "lt", "<"))
    for kind, name, sign in signs:
        bounds = [bound for bound in field.metadata if isinstance(bound, kind)]
        words += [f"{sign} {show(getattr(bound, name))}" for bound in bounds]
    return ", ".join(words)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    args = typing.get_args(annotation)
    return args if args and typing.get_origin(annotation) is not typing.Literal else (annotation,)


def _choices(annotation: Any) -> tuple[Any, ...]:
    return typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()


def keys(model: type[BaseModel], prefix: str, besides: Iterable[str] = ()) -> str:
    """A table of a model's keys from the docstrings of its fields."""
    rows = []
    for key, field in leaf_fields(model, prefix).items():
        if key in besides or key.partition(".")[0] in besides:
            continue
        default = f"`{show(field.default)}`" if field.default_factory is None else "by machine"
        rows.append([f"`{key}`", default, _allowed(field), " ".join((field.description or "").split())])
    return table(["key", "default", "values", "meaning"], rows)


def _list(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


# --------------------------------------------------------------------------------------------------- programs and runs


def commands() -> str:
    import typer

    from coterie.cli import app

    group: Any = typer.main.get_command(app)
    rows = []
    for name, command in group.commands.items():
        rows.append([f"`coterie {name}`", " ".join(command.help.split("\n\n")[0].split())])
    return table(["command", "does"], rows)


def algorithms() -> str:
    rows = [[f"`{row['name']}`", row["summary"], _list(row["presets"])] for row in algorithm_rows()]
    return table(["name", "what it is", "variants"], rows)


def environments() -> str:
    rows = []
    for row in environment_rows():
        roles = ", ".join(f"{role['agents']} `{role['role']}`" for role in row["roles"])
        actions = dict.fromkeys(role["actions"] for role in row["roles"])
        family, _, short = row["name"].partition("/")
        anchor = re.sub(r"[^\w-]", "", short.lower())
        link = f"[`{row['name']}`](docs/environments/{family}.md#{anchor})"
        rows.append([link, roles or "as its package has them", " / ".join(actions)])
    return table(["name", "agents", "actions"], rows)


def run_keys() -> str:
    return keys(RunConfig, "", besides=("algo", "env", "teams"))


def job() -> str:
    given = ["env=particle/simple_tag", "teams.agent.algo=random", "algo.lr=5e-4", "steps=2M", "threads=2"]
    text = to_yaml(resolve(given))
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("algo:"))
    return "\n".join(["```yaml", *lines[start : start + 9], "  ...", *_section(lines, "teams:"), "```"])


def _section(lines: list[str], head: str) -> list[str]:
    start = lines.index(head)
    stop = next(i for i, line in enumerate(lines) if i > start and not line.startswith(" "))
    rest = next(i for i, line in enumerate(lines) if line.startswith("steps:"))
    return [*lines[start:stop], *lines[rest : rest + 5], "..."]


def presets() -> str:
    return _presets(lambda name: True)


def _presets(wanted: Callable[[str], bool]) -> str:
    rows = []
    for folder in ("algo", "algo_env"):
        for name in settings.presets(folder):
            if wanted(registry.base_name(name)):
                found = settings.preset(folder, name)
                rows.append([f"`{name}`", _list(f"{s.key}={show(s.value)}" for s in found)])
    return table(["preset", "sets"], [row for row in rows if row[1]])


def families() -> dict[str, list[str]]:
    """Names of algorithms by the file that they are in."""
    found: dict[str, list[str]] = {}
    for name, target in registry.ALGOS.items():
        found.setdefault(target.partition(":")[0].rpartition(".")[2], []).append(name)
    return found


def capabilities() -> str:
    """What every algorithm can be given."""
    rows = []
    for row in algorithm_rows():
        actions = ["discrete", "multi_discrete", "continuous", "hybrid"]
        marks = [kind in row["actions"] for kind in actions]
        marks += [row[name] for name in ("masks", "memory", "images", "roles", "team", "death")]
        rows.append([f"`{row['name']}`", *("yes" if mark else "" for mark in marks), row["eval_mode"]])
    head = ["name", "discrete", "several at once", "continuous", "hybrid", "masks", "recurrent", "images", "roles"]
    return table([*head, "teams", "death", "evaluated"], rows)


def metrics() -> str:
    """Every declared metric, area by area."""
    from coterie.metrics import declared

    for module in pkgutil.walk_packages(coterie.__path__, "coterie."):
        importlib.import_module(module.name)
    areas: dict[str, list[list[str]]] = {}
    for name, metric in declared().items():
        better = {"up": "higher", "down": "lower", None: ""}[metric.better]
        row = [f"`{name}`", metric.unit, metric.meaning.rstrip("."), better, metric.combine]
        areas.setdefault(name.partition("/")[0], []).append(row)
    head = ["name", "unit", "meaning", "better", "over ranks"]
    return "\n\n".join(f"### {area}\n\n{table(head, rows)}" for area, rows in areas.items())


# ------------------------------------------------------------------------------------------------------ particle worlds


def _world(name: str) -> Any:
    return registry.environment(f"particle/{name}")


def _spec(name: str, **params: Any) -> EnvSpec:
    world = _world(name)
    return world(world.Config(**params), with_state=True).spec


def particle_keys() -> str:
    return keys(ParticleConfig, "env.")


def particle_scenarios() -> str:
    known_names = {name for name in registry.environments() if name.startswith("particle/")}
    missing = {name.rpartition("/")[2] for name in known_names} ^ set(SCENARIOS)
    if missing:
        raise ValueError(f"scenarios without a page, or pages without a scenario: {sorted(missing)}")
    return "\n\n".join(_scenario(name, scenario) for name, scenario in SCENARIOS.items())


def _scenario(name: str, scenario: Scenario) -> str:
    spec = _spec(name)
    picture = f'<img src="../pictures/particle/{name}.png" width="{SIZE}" alt="particle/{name}">'
    roles = [
        [f"`{role.name}`", f"`{role.group}`", ", ".join(f"`{agent}`" for agent in role.agents)] for role in spec.roles
    ]
    states = ", ".join(f"`{state}` {size}" for state, size in spec.state_sizes.items())
    own = set(leaf_fields(_world(name).Config)) - set(leaf_fields(ParticleConfig))
    common = {f"env.{key}" for key in leaf_fields(ParticleConfig)}
    parts = [
        f"### {name}",
        picture,
        scenario.story,
        table(["role", "team", "agents"], roles),
        f"**Reward.** {scenario.reward}",
        "**Observation.**",
        _layout(spec, scenario),
        f"**Actions.** Discrete: {scenario.acts}. Continuous: "
        + _each(spec, [f"{role.action.continuous} numbers" for role in _spec(name, actions="continuous").roles])
        + f" in [0, 1]. **States** for critics: {states} numbers. "
        + f"**Metrics** of an episode: {_list(spec.metrics)}.",
    ]
    if own:
        parts += ["**Keys.**", keys(_world(name).Config, "env.", besides=common)]
    return "\n\n".join(parts)


def _each(spec: EnvSpec, values: list[str]) -> str:
    """One word where all roles agree, else role by role."""
    if len(set(values)) == 1:
        return values[0]
    return ", ".join(f"{role.name} {value}" for role, value in zip(spec.roles, values, strict=True))


def _layout(spec: EnvSpec, scenario: Scenario) -> str:
    """The parts of every role's observation with their places. ValueError if they are not what the world shows."""
    rows = []
    for role in spec.roles:
        at = 0
        for meaning, size in scenario.observation[role.name]:
            places = f"{at}" if size == 1 else f"{at} to {at + size - 1}"
            rows.append([f"`{role.name}`" if at == 0 else "", places, meaning])
            at += size
        if (at,) != role.observation_space.shape:
            raise ValueError(f"{spec.name}, {role.name}: {at} features are told, {role.observation_space.shape} shown")
    return table(["role", "features", "what"], rows)


def particle_baselines() -> str:
    """Mean returns of untrained play over many episodes, an agent of each role, with the error of the mean."""
    torch.set_num_threads(1)  # more would wait for each other
    rows = []
    for name in SCENARIOS:
        variants = ["mpe2", "openai"] if "variant" in _world(name).Config.model_fields else [None]
        for variant in variants:
            params = {} if variant is None else {"variant": variant}
            spec = _spec(name, **params)
            random, still = (_returns(name, params, moves) for moves in (True, False))
            words = [", ".join(_baseline(spec, returns)) for returns in (random, still)]
            rows.append([f"`{name}`" + (f", `{variant}`" if variant else ""), *words])
    return table(["scenario", "random actions", "choice 0 always"], rows)


def _baseline(spec: EnvSpec, returns: torch.Tensor) -> list[str]:
    words = []
    for name, place in spec.role_slices().items():
        own = returns[:, place].mean(1)
        words.append(f"`{name}` {own.mean():.2f} ± {own.std() / len(own) ** 0.5:.2f}")
    return words


def _returns(name: str, params: dict[str, Any], moves: bool) -> torch.Tensor:
    """Returns by agent [episodes, N] of one episode in every copy."""
    env = coterie.make(f"particle/{name}", copies=EPISODES, seed=0, **params)
    env.reset(0)
    generator = torch.Generator().manual_seed(1)
    limit = env.spec.episode_limit
    assert limit is not None
    return torch.stack([env.step(_actions(env.spec, EPISODES, generator, moves))[0].reward for _ in range(limit)]).sum(
        0
    )


def _actions(spec: EnvSpec, copies: int, generator: torch.Generator, moves: bool) -> dict[str, Action]:
    return {
        role.name: Action(
            torch.randint(role.action.choices[0] if moves else 1, (copies, role.n, 1), generator=generator)
        )
        for role in spec.roles
    }


def draw() -> list[Path]:
    """Writes a picture of every particle scenario, agents on their way by random moves, and some of other worlds."""
    return [_save(name, picture) for name, picture in (*_scenario_pictures(), *known.pictures(2 * SIZE))]


def _save(name: str, picture: Any) -> Path:
    """Writes the picture of the environment `family/name`."""
    path = PICTURES / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def _scenario_pictures() -> Iterable[tuple[str, Any]]:
    for name, scenario in SCENARIOS.items():
        env = coterie.make(f"particle/{name}", seed=scenario.seed)
        assert isinstance(env, WorldEnv)
        env.reset(scenario.seed)
        generator = torch.Generator().manual_seed(scenario.seed)
        for _ in range(scenario.steps):
            env.step(_actions(env.spec, 1, generator, True))
        yield f"particle/{name}", env.render(0, 2 * SIZE)


BLOCKS: dict[str, Callable[[], str]] = {
    "algorithms": algorithms,
    "commands": commands,
    "environments": environments,
    "job": job,
    "matrix-keys": lambda: keys(MatrixConfig, "env."),
    "matrix-games": lambda: known.matrix(table, keys),
    "metrics": metrics,
    "particle-baselines": particle_baselines,
    "particle-keys": particle_keys,
    "particle-scenarios": particle_scenarios,
    "capabilities": capabilities,
    "presets": presets,
    "probe-table": lambda: known.probe_table(table),
    "probes": lambda: known.probes(table, keys),
    "rewards-keys": lambda: keys(RewardsConfig, "rewards."),
    "run-keys": run_keys,
    "wrapper-keys": lambda: keys(WrappersConfig, "env.wrappers."),
}
for _file, _names in families().items():
    BLOCKS[f"{_file}-keys"] = lambda name=_names[0]: keys(registry.algorithm(name).Config, "algo.")
    BLOCKS[f"{_file}-presets"] = lambda names=_names: _presets(lambda base: base in names)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure the returns of untrained play again")
    given = parser.parse_args(argv)
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new = filled(text, given.measure)
        if new != text:
            page.write_text(new, encoding="utf-8")
            print(page.relative_to(ROOT))
    for picture in draw():
        print(picture.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
