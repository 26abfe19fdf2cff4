"""Jobs of the learning benchmark: configuration, scale of the result, and reference level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Job:
    """One configuration that is trained with several seeds.

    Attributes:
        overrides: Arguments of `coterie train`.
        team: Team whose return is the result.
        scale: `agent` for the mean return per agent, `sum` for the sum over agents.
        picture: Jobs with the same name share a plot.
        level: Reference level on that scale.
        source: Source of the reference level, as Markdown.
        conditions: How the level was measured where it differs from the row: steps, action selection, opponents.
        curve: Preset whose learning curve in the original trainer is drawn beside those of the job.
        passes: Levels for which the time of the first evaluation above them is reported.
        script: Script of the environment that serves as a baseline.
        episodes: Episodes of the final evaluation if the default is too noisy or too slow.
        measure: Environment metric that replaces the return as the result, such as the win rate.
    """

    name: str
    overrides: tuple[str, ...]
    team: str
    scale: Literal["agent", "sum"]
    picture: str
    level: float | None = None
    source: str = ""
    passes: tuple[float, ...] = ()
    script: str | None = None
    episodes: int | None = None
    measure: str | None = None
    conditions: str = ""
    curve: str | None = None


SEEDS = (0, 1, 2)

COMMON = (
    "device=cpu",
    "threads=1",
    "eval.every=250k",
    "eval.episodes=512",
    "eval.num_envs=128",
    "checkpoint.every=1M",
    "log.tensorboard=false",
    "progress=lines",
)
"""Settings of all jobs; the overrides of a job come after them."""

_TABLE = "[Papoudakis et al. 2021](https://arxiv.org/abs/2006.07869), Table 3, mean of 5 seeds at their best evaluation"


def _logged(path: str, window: str) -> str:
    """Source of a level that is computed from a training log of a public repository.

    Args:
        path: File in the folder logs.
        window: Logged steps at the end of the log over which evaluations are averaged.
    """
    repository = "https://github.com/shawnmanuel000/MultiAgentFootball"
    revision = "5b09099116b87c4e9b6bc4c9be7c7c67e7dc2546"
    return (
        f"[shawnmanuel000/MultiAgentFootball]({repository}), "
        f"[logs/{path}]({repository}/blob/{revision}/logs/{path}), mean of the evaluations in {window}; a logged step "
        "is one step of 16 environments"
    )


_LISTED = _logged("mappo/simple_spread/logs_98.txt", "the last 20,000 logged steps")
_BEST_MADDPG = _logged("maddpg/simple_spread/logs_117.txt", "the logged steps from 180,000 to 200,000")
_BEST_COMA = _logged("coma/simple_spread/logs_158.txt", "the last 20,000 logged steps")
_HUNT = _logged("mappo/simple_tag/logs_1.txt", "the last 100,000 logged steps")
_EARLY_HUNT = _logged("mappo/simple_tag/logs_1.txt", "the logged steps from 90,000 to 100,000")
_SAMPLED = "3.2 M steps, sampled actions"
_OWN_TARGET = "a target of Coterie, not a published result"
_SPREAD = "env=particle/simple_spread"
_TAG = "env=particle/simple_tag"
_LEVELS = (-155.0, -145.0, -135.0)
_OPENAI = (_SPREAD, "env.variant=openai")
_CURIOUS = {"": (), "icm": ("rewards.icm={}",), "rnd": ("rewards.rnd={}",)}
_SHOWN = ("imitation.demos=benchmarks/runs/plates.safetensors",)
"""Recorded by `coterie record --algo scripted --env sparse/plates --out benchmarks/runs/plates.safetensors`."""
_ALIKE = ("rewards.gail.demos=benchmarks/runs/rooms.safetensors", "rewards.gail.reward=negative")
"""Recorded by `coterie record --algo scripted --env sparse/rooms --out benchmarks/runs/rooms.safetensors`."""

JOBS = (
    *(
        Job(
            f"spread-openai-{algo}",
            (f"algo={algo}", *_OPENAI, "steps=4M"),
            *("agent", "agent", "spread-openai", level, _TABLE, _LEVELS, "spread_greedily"),
            conditions="20 M steps",
        )
        for algo, level in (("mappo", -133.5), ("ippo", -133.9))
    ),
    *(
        Job(
            f"spread-openai-50-{algo}-original",
            (f"algo={algo}/original", *_OPENAI, "env.episode_limit=50", "steps=3200k"),
            *("agent", "agent", "spread-openai-50", level, source, (-382.0, -344.0, -300.0), "spread_greedily"),
            conditions=_SAMPLED + (", a tenth of them random" if algo == "coma" else ""),
            curve=f"{algo}/original",
        )
        for algo, level, source in (
            ("maddpg", -256.0, _BEST_MADDPG),
            ("coma", -379.0, _BEST_COMA),
            ("mappo", -344.0, _LISTED),
        )
    ),
    Job(
        "tag-mappo-mappo",
        ("algo=mappo", _TAG, "env.variant=openai", "env.episode_limit=50", "steps=2M"),
        *("adversary", "agent", "tag", 54.0, _HUNT, (54.0,)),
        conditions="16 M steps, a prey trained by that code",
    ),
    Job(
        "tag-mappo-original",
        ("algo=mappo/original_tag", _TAG, "steps=1600k"),
        *("adversary", "agent", "tag-original", 31.0, _EARLY_HUNT),
        conditions="1.6 M steps, sampled actions, one critic of both teams",
        curve="mappo/original_tag",
    ),
    Job(
        "speaker-listener-mappo",
        ("algo=mappo", "env=particle/simple_speaker_listener", "env.variant=openai", "steps=4M"),
        *("team", "agent", "speaker-listener", -15.0, _OWN_TARGET, (-45.0, -20.0, -15.0)),
        script="follow_speaker",
    ),
    Job(
        "simple-ppo",
        ("algo=ppo", "env=particle/simple", "steps=500k", "eval.every=50k"),
        *("agent", "sum", "simple", None, ""),
    ),
    *(
        Job(
            f"skirmish-{task}-{algo}",
            (f"algo={algo}", f"env=skirmish/{task}", f"steps={steps}", "eval.every=50k"),
            *("allies", "sum", f"skirmish-{task}", level, _OWN_TARGET, (level,)),
            measure="won",
        )
        for task, level, algo, steps in (
            ("3m", 0.95, "mappo", "700k"),
            ("3m", 0.95, "qmix", "500k"),
            ("2s3z", 0.90, "mappo", "1500k"),
        )
    ),
    Job(
        "foraging-8x8-2p-2f-coop-mappo",
        ("algo=mappo", "env=foraging/8x8-2p-2f-coop", "steps=600k", "eval.every=50k"),
        *("team", "sum", "foraging", 1.0, _TABLE, (0.9, 0.99)),
        conditions="20 M steps",
    ),
    *(
        Job(
            f"{task}-{algo}{'-' if signal else ''}{signal}",
            (f"algo={algo}", f"env=sparse/{task}", f"steps={steps}", "eval.every=20k", *_CURIOUS[signal]),
            *("team", "sum", task, None, "", (0.5, 0.95)),
        )
        for task, algo, steps in (("rooms", "ppo", "400k"), ("plates", "mappo", "500k"))
        for signal in _CURIOUS
    ),
    *(
        Job(
            f"plates-mappo-{name}",
            ("algo=mappo", "env=sparse/plates", f"steps={steps}", "eval.every=20k", *_SHOWN, *more),
            *("team", "sum", "plates", None, "", (0.5, 0.95)),
        )
        for name, steps, more in (("cloned", "20k", ("imitation.lr=5e-4", "algo.lr=1e-12")), ("shown", "200k", ()))
    ),
    Job(
        "rooms-ppo-gail",
        ("algo=ppo", "env=sparse/rooms", "steps=800k", "eval.every=20k", *_ALIKE),
        *("team", "sum", "rooms", None, "", (0.5, 0.95)),
    ),
)


def command(job: Job, seed: int, out: str, extra: tuple[str, ...] = ()) -> list[str]:
    """Arguments of `coterie train` for one run; later settings win."""
    settings: dict[str, str] = {}
    for setting in (*COMMON, *job.overrides, f"seed={seed}", *extra, f"out={out}"):
        key, _, value = setting.partition("=")
        settings[key] = value
    return [f"{key}={value}" for key, value in settings.items()]
