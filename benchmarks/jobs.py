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
_ON_POLICY, _OFF_POLICY = "20 M steps", "2 M steps"


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
_BEST_MAPPO = _logged("mappo/simple_spread/logs_99.txt", "the last 20,000 logged steps")
_BEST_MADDPG = _logged("maddpg/simple_spread/logs_117.txt", "the logged steps from 180,000 to 200,000")
_BEST_COMA = _logged("coma/simple_spread/logs_158.txt", "the last 20,000 logged steps")
_HUNT = _logged("mappo/simple_tag/logs_1.txt", "the last 100,000 logged steps")
_EARLY_HUNT = _logged("mappo/simple_tag/logs_1.txt", "the logged steps from 90,000 to 100,000")
_ACROBOT = _logged("ddqn/Acrobot-v1/logs_0.txt", "the last 20,000 logged steps")
_SAMPLED = "3.2 M steps, sampled actions"
_OWN_TARGET = "a target of Coterie, not a published result"
_SPREAD = "env=particle/simple_spread"
_TAG = "env=particle/simple_tag"
_TAG_OPENAI = (_TAG, "env.variant=openai", "env.episode_limit=50")
_LEVELS = (-155.0, -145.0, -135.0)
_OPENAI = (_SPREAD, "env.variant=openai")
_LISTENER = ("env=particle/simple_speaker_listener", "env.variant=openai")
_OWN_CRITICS = "SAC of Coterie (`algo=sac`) with the settings of this row, whose critics are decentralized"
_FOLLOWS = (
    f"{_OWN_TARGET}; no listener earns more than about -12.4, see `follow_speaker` in docs/environments/particle.md"
)
_POLE = "the task's limit"
_SHORT = ("eval.episodes=100", "eval.num_envs=20")
_MATCHES = ("eval.episodes=64", "eval.num_envs=8")
_RAFFIN = "[RL Zoo](https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md) (Raffin 2020)"
_ZOO = f"{_OWN_TARGET}; about -152 to -157 in the {_RAFFIN}"
_CURIOUS = {"": (), "icm": ("rewards.icm={}",), "rnd": ("rewards.rnd={}",)}
_SHOWN = ("imitation.demos=benchmarks/runs/plates.safetensors",)
"""Recorded by `coterie record --algo scripted --env sparse/plates --out benchmarks/runs/plates.safetensors`."""
_ALIKE = ("rewards.gail.demos=benchmarks/runs/rooms.safetensors", "rewards.gail.reward=negative")
"""Recorded by `coterie record --algo scripted --env sparse/rooms --out benchmarks/runs/rooms.safetensors`."""

UNTUNED = (
    "tag-mappo-original",
    "spread-openai-50-maddpg-original",
    "spread-openai-50-coma-original",
    "spread-openai-50-mappo-original",
    "skirmish-3m-qmix",
    "skirmish-2s3z-qmix",
    "warehouse-tiny-2ag-mappo",
)
"""Jobs whose settings were not tuned for Coterie: those of the original trainer, or of another task."""

TUNED_ELSEWHERE = ("pushblock-poca", "pushblock-coma", "pushblock-mappo", "pushblock-ippo")
"""Jobs whose settings were tuned by coop_tuning.py, on seeds that are not reported."""

JOBS = (
    Job(
        "spread-openai-mappo",
        ("algo=mappo", _SPREAD, "env.variant=openai", "steps=4M"),
        *("agent", "agent", "spread-openai", -133.5, _TABLE, _LEVELS, "spread_greedily"),
        conditions=_ON_POLICY,
    ),
    Job(
        "spread-openai-ippo",
        ("algo=ippo", _SPREAD, "env.variant=openai", "steps=4M"),
        *("agent", "agent", "spread-openai", -133.9, _TABLE, _LEVELS, "spread_greedily"),
        conditions=_ON_POLICY,
    ),
    Job(
        "spread-mpe2-mappo",
        ("algo=mappo", _SPREAD, "steps=2M"),
        *("agent", "sum", "spread-mpe2", None, "", (-42.0,), "spread_greedily"),
    ),
    Job(
        "spread-mpe2-ippo",
        ("algo=ippo", _SPREAD, "steps=2M"),
        *("agent", "sum", "spread-mpe2", None, "", (-42.0,), "spread_greedily"),
    ),
    Job(
        "spread-openai-50-mappo",
        ("algo=mappo", _SPREAD, "env.variant=openai", "env.episode_limit=50", "steps=4M"),
        *("agent", "agent", "spread-openai-50", -315.0, _BEST_MAPPO, (-315.0, -250.0, -200.0), "spread_greedily"),
        conditions=_SAMPLED,
    ),
    Job(
        "speaker-listener-mappo",
        ("algo=mappo", "env=particle/simple_speaker_listener", "env.variant=openai", "steps=4M"),
        *("team", "agent", "speaker-listener", -15.0, _OWN_TARGET, (-45.0, -20.0, -15.0)),
        script="follow_speaker",
    ),
    Job(
        "tag-mappo-mappo",
        ("algo=mappo", *_TAG_OPENAI, "steps=2M"),
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
        "tag-mappo-random",
        ("algo=mappo", "teams.agent.algo=random", *_TAG_OPENAI, "steps=2M"),
        *("adversary", "agent", "tag", None, "", (54.0,)),
    ),
    Job(
        "simple-ppo",
        ("algo=ppo", "env=particle/simple", "steps=500k", "eval.every=50k"),
        *("agent", "sum", "simple", None, ""),
    ),
    Job(
        "spread-continuous-ippo",
        ("algo=ippo", _SPREAD, "env.actions=continuous", "steps=1500k"),
        *("agent", "sum", "spread-continuous", None, ""),
    ),
    *(
        Job(
            f"spread-openai-{algo}",
            (f"algo={algo}", *_OPENAI, f"steps={steps}", "eval.every=100k"),
            *("agent", "agent", "spread-openai-core", level, source, _LEVELS, "spread_greedily"),
            conditions=conditions,
        )
        for algo, steps, level, source, conditions in (
            ("qmix", "1500k", -126.6, _TABLE, _OFF_POLICY),
            ("vdn", "1M", -131.0, _TABLE, _OFF_POLICY),
            ("iql", "1500k", -132.6, _TABLE, _OFF_POLICY),
            ("maddpg", "2M", -141.7, _TABLE, _OFF_POLICY),
            ("masac", "1M", -132.0, _OWN_CRITICS, "0.6 M steps, one seed"),
            ("coma", "3M", -204.3, _TABLE, _ON_POLICY),
            ("poca", "3M", -135.0, _OWN_TARGET, ""),
        )
    ),
    *(
        Job(
            f"spread-openai-50-{algo.replace('/', '-')}",
            (f"algo={algo}", *_OPENAI, "env.episode_limit=50", "steps=3200k"),
            *("agent", "agent", "spread-openai-50-core", level, source, (-382.0, -344.0, -300.0), "spread_greedily"),
            conditions=_SAMPLED + (", a tenth of them random" if algo.startswith("coma") else ""),
            curve=algo if algo.endswith("/original") else None,
        )
        for algo, level, source in (
            ("maddpg", -256.0, _BEST_MADDPG),
            ("coma", -379.0, _BEST_COMA),
            ("maddpg/original", -256.0, _BEST_MADDPG),
            ("coma/original", -379.0, _BEST_COMA),
            ("mappo/original", -344.0, _LISTED),
        )
    ),
    *(
        Job(
            f"speaker-listener-{algo}",
            (f"algo={algo}", *_LISTENER, f"steps={steps}", "eval.every=100k", "eval.mode=greedy"),
            *("team", "agent", "speaker-listener-core", level, _FOLLOWS, (-20.0, -15.0)),
            script="follow_speaker",
            episodes=10_000,
        )
        for algo, steps, level in (("qmix", "1500k", -12.0), ("maddpg", "2M", -14.0))
    ),
    *(
        Job(
            f"{task}-{algo}",
            (f"algo={algo}", f"env=gym/{env}", f"steps={steps}", f"eval.every={every}", *_SHORT),
            *("agent", "sum", task, level, source, (level,)),
        )
        for algo, task, env, steps, every, level, source in (
            ("ddqn", "cartpole", "CartPole-v1", "50k", "2500", 500.0, _POLE),
            ("ppo", "cartpole", "CartPole-v1", "100k", "5k", 500.0, _POLE),
            ("sac", "pendulum", "Pendulum-v1", "20k", "2k", -160.0, _ZOO),
            ("ddpg", "pendulum", "Pendulum-v1", "20k", "2k", -160.0, _ZOO),
            ("td3", "pendulum", "Pendulum-v1", "20k", "2k", -160.0, _ZOO),
        )
    ),
    Job(
        "pendulum-ppo",
        ("algo=ppo", "env=gym/Pendulum-v1", "steps=100k", "eval.every=10k", *_SHORT),
        *("agent", "sum", "pendulum-ppo", -172.0, _RAFFIN, (-172.0,)),
        conditions="greedy",
    ),
    *(
        Job(
            f"{task}-{algo}",
            (f"algo={algo}", f"env=coop/{task}", f"steps={steps}", "eval.every=100k"),
            *("team", "sum", task, None, ""),
        )
        for task, steps in (("escape", "1M"), ("baton", "1M"), ("pushblock", "750k"))
        for algo in ("poca", "coma", "mappo", "ippo")
    ),
    *(
        Job(
            f"{env.lower()}-{algo}",
            (f"algo={algo}", f"env=gym/{env}-{version}", f"steps={steps}", f"eval.every={every}", *_SHORT),
            *("agent", "sum", env.lower(), level, source, (level,)),
            conditions=conditions,
        )
        for algo, env, version, steps, every, level, source, conditions in (
            ("ddqn", "Acrobot", "v1", "60k", "3k", -80.0, _ACROBOT, "1.6 M steps"),
            ("ppo", "LunarLander", "v3", "600k", "50k", 242.0, _RAFFIN, "1 M steps, greedy"),
            ("sac", "LunarLanderContinuous", "v3", "200k", "20k", 260.0, _RAFFIN, "500,000 steps"),
        )
    ),
    *(
        Job(
            f"skirmish-{task}-{algo}",
            (f"algo={algo}", f"env=skirmish/{task}", f"steps={steps}", "eval.every=50k"),
            *("allies", "sum", f"skirmish-{task}", level, _OWN_TARGET, (level,)),
            measure="won",
        )
        for task, level, lengths in (("3m", 0.95, ("700k", "500k")), ("2s3z", 0.90, ("1500k", "1M")))
        for algo, steps in zip(("mappo", "qmix"), lengths, strict=True)
    ),
    Job(
        "foraging-8x8-2p-2f-coop-mappo",
        ("algo=mappo", "env=foraging/8x8-2p-2f-coop", "steps=600k", "eval.every=50k"),
        *("team", "sum", "foraging", 1.0, _TABLE, (0.9, 0.99)),
        conditions=_ON_POLICY,
    ),
    Job(
        "warehouse-tiny-2ag-mappo",
        ("algo=mappo", "env=warehouse/tiny-2ag", "steps=4M", "eval.every=250k", "eval.episodes=128"),
        *("team", "sum", "warehouse", None, "", (1.0, 10.0)),
    ),
    *(
        Job(
            f"football-{task}-{algo}",
            (f"algo={algo}", f"env=football/academy_{task}", f"steps={steps}", f"eval.every={every}", *_MATCHES),
            *("left", "sum", f"football-{task}", None, "", (0.5,)),
            measure="won",
            episodes=200,
        )
        for task, steps, every in (("empty_goal", "100k", "20k"), ("3_vs_1_with_keeper", "200k", "40k"))
        for algo in ("mappo", "coma")
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
