"""Cases of the campaign of mutated settings and files, drawn from a seed.

A case is a command of `coterie` in a folder of its own, with copies of prepared runs, demonstrations, exported policies
and recordings. Either its settings, its words or one of its files are mutated.
"""

from __future__ import annotations

import random
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fuzz_files
import typer.main
from fuzz_values import HOSTILE, NUMBERS, key_of, misspelled, mutated_words
from kill_cases import PLATES, SMALL, configurations, merged

from coterie.algos import registry
from coterie.assembly.resolve import resolve
from coterie.cli.app import app
from coterie.config.messages import alternatives, leaf_fields
from coterie.config.schema import RunConfig, TeamConfig
from coterie.config.sources import flatten
from coterie.core.errors import ReportedError

FASTER = (
    *("steps=80", "eval.every=40", "eval.episodes=2", "eval.min_episodes=2", "eval.num_envs=2"),
    *("checkpoint.every=40", "rank_timeout=10"),
)
"""Settings that make the runs of `kill_cases` shorter."""

RUNS = {
    "tag": "several teams",
    "qmix": "qmix, GRU",
    "disk": "replay buffer on disk, priorities",
    "duel": "self-play, prioritized, GRU",
    "lessons": "curriculum",
    "sac": "sac, continuous",
    "gail": "GAIL",
    "coma": "coma",
}
"""Folders of prepared runs with the name of their configuration in `kill_cases`."""

LEFT_OUT = {"Ray workers", "two ranks", "two ranks, GRU, replay buffer on disk"}
"""Configurations whose runs take seconds to start."""

ENVIRONMENTS = (
    *("board/tictactoe", "board/connect_four", "coop/baton", "coop/escape", "coop/pushblock", "foraging/8x8-2p-2f"),
    *("gym/CartPole-v1", "gym/Pendulum-v1", "gym/LunarLander-v3", "gymvec/CartPole-v1", "matrix/climbing"),
    *("matrix/prisoners_dilemma", "overcooked/cramped_room", "pettingzoo/classic.tictactoe_v3", "probe/masked"),
    *("pettingzoo/mpe2.simple_spread_v3", "pettingzoo/sisl.pursuit_v5", "probe/hybrid", "probe/image", "skirmish/3m"),
    *("skirmish/2s3z_duel", "sparse/rooms", "sparse/plates", "traffic/junction-easy", "warehouse/tiny-2ag"),
    *("particle/simple_formation", "particle/simple_world_comm", "particle/collect_treasure"),
    *("lbforaging/Foraging-8x8-2p-2f-coop-v3", "rware/rware-tiny-2ag-v2", "smaclite/2s3z", "smac/3m"),
    *("smacv2/terran_5_vs_5", "football/academy_empty_goal"),
)
"""At least one environment of every family."""

LONGER = {
    *("steps", "num_envs", "episodes", "min_episodes", "rollout_length", "epochs", "num_minibatches", "gradient_steps"),
    *("hidden_sizes", "critic_hidden_sizes", "rnn_size", "batch_size", "learning_starts", "rating_episodes", "n"),
    *("win_rate_episodes", "snapshot_interval", "buffer_size", "seconds", "trials", "seeds", "jobs", "every", "size"),
    *(
        "episode_limit",
        "network",
        "critic_network",
        "timeout",
        "restarts",
        "count",
        "ranks",
        "threads",
        "evaluate",
        "all",
    ),
}
"""Settings and options with which a run may rightly take long: it is interrupted after a while."""

_OPTIONS_LEFT_OUT = {"--open", "--help", "-h", "--launcher"}
_TRAINED = (*SMALL, *FASTER, "env=particle/simple_tag", "env.episode_limit=10", "algo=ippo", "algo.hidden_sizes=[8]")
_TRAIN = ("train", *merged((*_TRAINED, "out=run")))
_TUNED = ("--trials", "1", "--seeds", "1", "--out", "new")


@dataclass(frozen=True)
class Case:
    """A command with mutated settings, words or files.

    Attributes:
        words: The command.
        mutation: What was mutated.
        needs: Prepared files and folders that the command reads.
        files: Content of further files by name.
        damaged: File that is damaged, relative to the case's folder, with the kind of damage. Or None.
        may_be_long: True if the mutation may ask for a long run, which is interrupted.
    """

    words: list[str]
    mutation: str
    needs: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    damaged: tuple[str, str] | None = None
    may_be_long: bool = False

    @property
    def command(self) -> str:
        return next((word for word in self.words if word in COMMANDS), "another")

    @property
    def serves(self) -> bool:
        """True if the command serves a page until it is interrupted."""
        return self.command in {"serve", "watch", "view"} or "--human" in self.words


# ---------------------------------------------------------------------------------------------------- prepared files


def preparations() -> list[list[str]]:
    """Returns the commands that write what the cases read, in the current folder, in order."""
    cases = configurations(Path())
    plates = merged((*SMALL, *FASTER, *PLATES))
    return [
        ["record", "--algo", "scripted", "--env", "sparse/plates", PLATES[1], "--out", "demos.safetensors"],
        ["train", *merged((*cases["several teams"], *FASTER, "out=policy"))],
        *(["train", *merged((*cases[name], *FASTER)), f"out={out}"] for out, name in RUNS.items()),
        *(["export", "tag", "--out", f"exported-{kind}", "--format", kind] for kind in ("onnx", "numpy", "torch")),
        ["export", "qmix", "--out", "exported-q", "--format", "numpy"],
        ["play", "tag", "--replay", "recording"],
        ["train", "-m", *_TRAIN[1:-1], "seed=0,1", "out=sweep"],
        ["tune", *_TRAIN[1:-1], "algo.lr=log(1e-4,1e-2)", "--trials", "1", "--seeds", "1", "--out", "study"],
        ["compare", "sweep", "--marl-eval", "marl.json"],
        ["league", "tag", "random", "--episodes", "4", "--out", "league.png"],
        ["train", *plates, "algo=random", "out=random"],
    ]


SPACE = "algo.lr: log(1e-4,1e-2)\nalgo.gamma: uniform(0.9,1)\n"


def settings_file() -> str:
    """Returns a YAML file of settings of a run."""
    return "".join(f"{word.replace('=', ': ', 1)}\n" for word in _TRAIN[1:])


READERS: dict[str, tuple[tuple[str, ...], ...]] = {
    run: (
        *(("resume", run, "steps=120"),) * 3,
        ("evaluate", run, "--episodes", "4"),
        ("evaluate", run, "--episodes", "2", "--checkpoint", "last", "--json"),
        *(("export", run, "--out", "exported", "--format", kind) for kind in ("numpy", "onnx", "torch", "mlagents")),
        ("play", run, "--replay", "recording"),
        ("ps", "."),
        ("report", run, "--no-videos", "--out", "report.html"),
        ("diagnose", run),
        ("compare", run, "--json", "-"),
        ("plot", run, "--out", "curves.png", "--csv"),
        ("league", run, "random", "--episodes", "2", "--out", "league.png"),
        ("exploit", run, "--steps", "40", "--episodes", "2"),
        ("record", run, "--episodes", "2", "--out", "new.safetensors"),
        ("watch", run),
    )
    for run in RUNS
} | {
    "demos.safetensors": (
        ("demos", "demos.safetensors", "--env", "sparse/plates"),
        ("train", *merged((*SMALL, *FASTER, *PLATES, "algo=ippo", "imitation.demos=demos.safetensors", "out=run"))),
        ("train", *merged((*SMALL, *FASTER, *PLATES, "algo=ippo", "rewards.gail.demos=demos.safetensors", "out=run"))),
    ),
    "policy": (
        ("train", *merged((*_TRAIN[1:], "teams.agent.run=policy"))),
        ("train", *merged((*_TRAIN[1:], "init.run=policy"))),
        ("evaluate", "policy", "teams.agent.algo=random", "--episodes", "2"),
        ("diagnose", "policy/checkpoints/last"),
    ),
    **{f"exported-{kind}": (("serve", f"exported-{kind}/agent"),) for kind in ("onnx", "numpy", "torch", "q")},
    "recording": (("view", "recording/episodes.zip"),),
    "sweep": (
        ("train", "-m", *_TRAIN[1:-1], "seed=0,1,2", "out=sweep"),
        ("compare", "sweep"),
        ("ps", "sweep"),
        ("report", "sweep", "--no-videos"),
        ("plot", "sweep", "--out", "curves.png"),
    ),
    "study": (
        ("tune", *_TRAIN[1:-1], "algo.lr=log(1e-4,1e-2)", "--trials", "2", "--seeds", "1", "--out", "study"),
    ),
    "marl.json": (
        ("compare", "marl.json", "--file-returns", "team"),
        ("report", "marl.json", "--file-returns", "team"),
    ),
    "league.json": (("report", "tag", "--league", "league.json", "--no-videos"),),
    "settings.yaml": (
        ("train", "--config", "settings.yaml"),
        ("bench", "--config", "settings.yaml", "--seconds", "0.1"),
        ("tune", "--config", "settings.yaml", "algo.lr=log(1e-4,1e-2)", *_TUNED),
    ),
    "space.yaml": (("tune", *_TRAIN[1:-1], "--space", "space.yaml", *_TUNED),),
}  # fmt: skip
"""Commands that read a prepared file or folder, by its name."""

BASES: tuple[tuple[str, ...], ...] = (
    _TRAIN,
    ("train", "--algo", "random", "--env", "matrix/climbing", "steps=40", "num_envs=2", "progress=off", "out=run"),
    ("train", *_TRAIN[1:], "--cfg", "job"),
    ("train", "-m", *_TRAIN[1:-1], "seed=0,1", "out=new", "--jobs", "1"),
    ("train", "-m", *_TRAIN[1:-1], "seed=0,1", "algo=ippo,mappo", "--print"),
    ("tune", *_TRAIN[1:-1], "algo.lr=log(1e-4,1e-2)", *_TUNED),
    ("reproduce", "papoudakis2021"),
    ("reproduce", "papoudakis2021", "spread", "--algo", "mappo,ippo", "--seeds", "2", "--steps", "100", "--print"),
    ("bench", *_TRAIN[1:-1], "--seconds", "0.1"),
    ("check-env", "matrix/climbing"),
    ("check-env", "particle/simple_tag", "env.episode_limit=5", "--json"),
    ("check-env", "gym/CartPole-v1"),
    ("check-algo", "ippo", "--only", "masks"),
    ("evaluate", "--algo", "random", "--env", "matrix/climbing", "--episodes", "4"),
    ("play", "--algo", "scripted", "--env", "particle/simple_tag", "--replay", "new", "--episodes", "1"),
    ("play", "tag", "--human", "agent.agent_0"),
    ("play", "tag", "--video", "new.gif", "--size", "64"),
    ("record", "--algo", "scripted", "--env", "sparse/plates", "--episodes", "2", "--out", "new.safetensors"),
    ("compare", "sweep", "tag", "--evaluate", "2", "--markdown", "table.md", "--latex", "table.tex", "--csv", "-"),
    ("compare", "sweep", "--plot", "figure.png"),
    ("report", "tag", "--episodes", "2", "--out", "report.html"),
    ("plot", "sweep", "--metric", "loss/agent/policy", "--x", "steps", "--smooth", "3", "--out", "curves.png"),
    ("ps", "tag", "sweep", "--state", "finished", "--json"),
    ("resume", "tag", "steps=120", "eval.every=60"),
    ("list", "algos"),
    ("list", "algos", "mappo"),
    ("list", "envs", "--wide"),
    ("list", "keys", "lr", "algo=ippo", "env=particle/simple_tag"),
    ("list", "parameters", "particle/simple_tag"),
    *(words for readers in READERS.values() for words in readers),
)
"""Valid commands, of which words are mutated."""

COMMANDS = sorted({words[0] for words in BASES})
CREATED = {"settings.yaml": settings_file(), "space.yaml": SPACE}
"""Files that are written rather than prepared."""


def needed(words: Sequence[str], prepared: Sequence[str]) -> tuple[str, ...]:
    """Returns the prepared files and folders that the words of a command name."""
    named = {part for word in words for part in (word, word.partition("=")[2], word.partition("/")[0])}
    named |= {"tag", "sweep"} & set(prepared) if "." in named else set()
    return tuple(name for name in prepared if name in named)


# --------------------------------------------------------------------------------------------------------- settings


@dataclass(frozen=True)
class Setting:
    """A setting with the words of a run that has it.

    Attributes:
        key: The setting.
        words: Settings of the run.
        choices: Values that its type allows, as texts.
        values: Hostile values, of which numbers are drawn more often if its type allows them.
    """

    key: str
    words: tuple[str, ...]
    choices: tuple[str, ...] = ()
    values: tuple[str, ...] = HOSTILE


def all_settings() -> list[Setting]:
    """Returns every setting of every algorithm, every family of environments, and all runs, one entry each."""
    found: dict[tuple[str, str], Setting] = {}
    for words in run_words():
        try:
            config = resolve(list(words)).config
        except ReportedError:  # a package is not installed
            found["", f"env {words}"] = Setting("env", words)
            continue
        fields = _fields(config)
        family = config.env.name.partition("/")[0]
        for key, _ in flatten(config.tree()):
            owner = config.algo.name if key.startswith("algo.") else family if key.startswith("env.") else ""
            annotation = fields[key].annotation if key in fields else None
            values = (*HOSTILE, *NUMBERS * 5) if {int, float} & {*alternatives(annotation)} else HOSTILE
            found.setdefault((owner, key), Setting(key, words, _choices(annotation), values))
    return list(found.values())


def run_words() -> list[tuple[str, ...]]:
    """Returns the settings of runs that cover all algorithms, modes and families of environments."""
    kept = {name: words for name, words in configurations(Path()).items() if name not in LEFT_OUT}
    own = [tuple(merged((*words, *FASTER))) for words in kept.values()]
    common = (*SMALL, *FASTER, "algo=ippo", "algo.hidden_sizes=[8]", "algo.epochs=1", "algo.num_minibatches=1")
    return own + [tuple(merged((*common, f"env={name}"))) for name in ENVIRONMENTS]


def _fields(config: Any) -> dict[str, Any]:
    """Returns the fields of all settings by key."""
    fields = leaf_fields(RunConfig) | leaf_fields(type(config.env.params), "env.")
    fields |= leaf_fields(registry.algorithm(config.algo.name).Config, "algo.")
    for team, own in config.teams.items():
        fields |= leaf_fields(TeamConfig, f"teams.{team}.") | leaf_fields(type(own.algo.params), f"teams.{team}.algo.")
    return fields


def _choices(annotation: Any) -> tuple[str, ...]:
    """Returns valid values of a type as texts, or values that are often valid."""
    found: list[str] = []
    for kind in alternatives(annotation):
        if typing.get_origin(kind) is typing.Literal:
            found += [str(value) for value in typing.get_args(kind)]
        elif kind is bool:
            found += ["true", "false"]
        elif kind is int:
            found += ["1", "2", "3", "5"]
        elif kind is float:
            found += ["0.0", "0.5", "1.0"]
        elif kind is type(None):
            found.append("null")
    return tuple(found)


# ------------------------------------------------------------------------------------------------------------- cases


class Deck:
    """Draws the cases of a campaign. Case `index` depends only on the seed, the index and the code.

    Args:
        seed: The seed.
        prepared: Folder with the prepared files.
    """

    def __init__(self, seed: int, prepared: Path):
        self._seed = seed
        self._settings = all_settings()
        random.Random(seed).shuffle(self._settings)
        self._prepared = sorted(path.name for path in prepared.iterdir() if path.name != "output.txt")
        self._files = {name: [str(file.relative_to(prepared)) for file in fuzz_files.files_of(prepared / name)]
                       for name in READERS if (prepared / name).exists()}  # fmt: skip
        self._files |= {name: [name] for name in CREATED}
        self._options = _options()

    @property
    def settings(self) -> int:
        """Number of settings that are mutated in turn."""
        return len(self._settings)

    def draw(self, index: int) -> Case:
        """Returns case `index`: half of all are settings, a fifth are words, the others files."""
        generator = random.Random(f"{self._seed}/{index}")
        turn, kind = divmod(index, 10)
        if kind < 5:
            return self._of_settings(self._settings[(turn * 5 + kind) % len(self._settings)], generator)
        return self._of_words(generator) if kind < 7 else self._of_files(generator)

    def _of_settings(self, setting: Setting, generator: random.Random) -> Case:
        mutation = generator.choice(("value", "value", "choice", "choice", "two", "two", "key", "file"))
        value = generator.choice(setting.values)
        words, files = list(setting.words), {}
        choice = generator.choice(setting.choices) if setting.choices else value
        changed = [f"{setting.key}={choice if mutation == 'choice' else value}"]
        name = "value of a setting"
        if mutation == "choice":
            name = "another valid value"
        elif mutation == "two":
            name = "two settings"
            other = generator.choice(self._settings)
            changed = [f"{setting.key}={choice}"]
            changed.append(f"{other.key}={generator.choice(other.choices or other.values)}")
        elif mutation == "key":
            name = "misspelled setting"
            changed = [f"{misspelled(setting.key, generator)}={choice}"]
        elif mutation == "file":
            name = "value in a YAML file"
            files = {"own.yaml": f"{setting.key}: {value}\n"}
            words, changed = [word for word in words if key_of(word) != setting.key], ["--config", "own.yaml"]
        own = [key_of(word) for word in changed]
        own += [key.removesuffix(".name") for key in own if key in {"algo.name", "env.name"}]
        words = [word for word in words if key_of(word) not in own]
        command = generator.choices(
            (["train", "out=run"], ["bench", "--seconds", "0.1"], ["list", "keys"], ["tune", "--trials", "1"]),
            weights=(92, 4, 3, 1) if not files else (1, 0, 0, 0),
        )[0]
        if command[0] == "tune":
            changed += ["algo.gamma=uniform(0.9,1)", "--seeds", "1", "--out", "new"]
        whole = [*command[:1], *(command[1:] if command[0] == "list" else ()), *words, *changed, *command[1:]]
        whole = whole[:-1] if command[0] == "list" else whole
        needs = needed(whole, self._prepared)
        return Case(whole, name, needs, files, may_be_long=_may_be_long([setting.key, *own]))

    def _of_words(self, generator: random.Random) -> Case:
        words = list(generator.choice(BASES))
        draw = generator.random()
        own: list[str] = []
        if draw < 0.35:
            option = generator.choice(self._options[words[0]])
            own, mutation = [option[0]], "option added"
            words += option if len(option) == 1 else [option[0], generator.choice(HOSTILE)]
        elif draw < 0.5:
            setting = generator.choice(self._settings)
            own, mutation = [setting.key], "setting added"
            words.append(f"{setting.key}={generator.choice((*setting.choices, *setting.values))}")
        else:
            before = words
            mutation, words = mutated_words(words, generator)
            own = [key_of(word) or word for word in {*words} ^ {*before}]
        is_created = {name: text for name, text in CREATED.items() if name in words}
        needs = needed(words, self._prepared)
        is_long = _may_be_long(own) or mutation not in {"option added", "setting added"}
        return Case(words, mutation, needs, is_created, may_be_long=is_long)

    def _of_files(self, generator: random.Random) -> Case:
        name = generator.choice([*self._files, *RUNS])
        words = list(generator.choice(READERS[name]))
        if generator.random() < 0.1 and ["--trust"] in self._options[words[0]]:
            words.append("--trust")
        file, kind = generator.choice(self._files[name]), generator.choice(fuzz_files.KINDS)
        is_created = {name: CREATED[name]} if name in CREATED else {}
        needs = (*needed(words, self._prepared), *(() if is_created else (name,)))
        is_long = file.endswith((".yaml", "state.json"))
        return Case(words, kind, tuple(sorted({*needs})), is_created, (file, kind), may_be_long=is_long)


def _may_be_long(keys: Sequence[str]) -> bool:
    return any(key.strip("-").rpartition(".")[2] in LONGER or key.startswith("env.") for key in keys)


def _options() -> dict[str, list[list[str]]]:
    """Returns the options of every command, flags as one word and others as two."""
    group: Any = typer.main.get_command(app)
    return {
        name: [
            [option] if parameter.is_flag else [option, ""]
            for parameter in _parameters(command)
            for option in (*parameter.opts, *parameter.secondary_opts)
            if hasattr(parameter, "is_flag") and option not in _OPTIONS_LEFT_OUT
        ]
        for name, command in group.commands.items()
    }


def _parameters(command: Any) -> list[Any]:
    commands = [command, *getattr(command, "commands", {}).values()]
    return [parameter for own in commands for parameter in own.params]
