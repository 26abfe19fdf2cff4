"""Defaults of all algorithms on tasks without presets, and the page on them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from coterie.algos import registry
from preset_learners import CLASSES, LEARNERS

OF_ONE_AGENT = ("ppo", "ddqn", "ddpg", "td3", "sac")


@pytest.fixture
def scripts(script: Callable[[str], ModuleType]) -> Any:
    """The modules of benchmarks/ that train with defaults."""
    return SimpleNamespace(**{name: script(name) for name in ("defaults", "default_page", "default_tasks")})


def test_every_algorithm_is_reported_or_named_as_one_of_single_agents(scripts: Any) -> None:
    reported = {*scripts.defaults.algorithms("discrete"), *scripts.defaults.algorithms("continuous")}
    assert scripts.defaults.OF_ONE_AGENT == OF_ONE_AGENT
    assert reported | set(OF_ONE_AGENT) == set(LEARNERS)
    assert "matd3" in scripts.defaults.algorithms("continuous")
    assert "pac" not in scripts.defaults.algorithms("continuous")


SAME_ALONE = {
    **dict.fromkeys(("ippo", "mappo", "happo"), "ppo"),
    **dict.fromkeys(("ia2c", "haa2c", "seac"), "maa2c"),
    "maddpg": "ddpg",
    "matd3": "td3",
    "hasac": "masac",
}
"""Algorithms that are another one with a single agent."""
TWO_TASKS = {*CLASSES, *OF_ONE_AGENT, *SAME_ALONE.values()} - SAME_ALONE.keys()
"""Algorithms that train on two tasks: one of each class of learners, and those of single agents."""
CRYPTO, PENALTY, CARTPOLE, SIMPLE = "particle/simple_crypto", "matrix/penalty", "gym/CartPole-v1", "particle/simple"
STEPS = {CRYPTO: 2_300, PENALTY: 2_000, CARTPOLE: 3_000, SIMPLE: 9_000}
"""Steps after which an algorithm has clearly learned, with the seed of the test and with others, in few updates."""
ONE_STEP = {CRYPTO: 16_000, SIMPLE: 10_000}
"""Those of algorithms that take one gradient step per rollout: `maa2c`, `ia2c`, `haa2c`, `vdac` and `seac`."""
REPLAYED = {CRYPTO: 2_000, PENALTY: 1_500, CARTPOLE: 3_000}
"""Those of Q-learners with a replay buffer, each of which takes several times as long."""


def tasks_of(algo: str, scripts: Any) -> list[Any]:
    """Returns a task of a team, and if the algorithm trains on two tasks, one of continuous actions, or a second one of
    choices for algorithms that know no others.

    PPO and DDQN are IPPO and IQL in teams, and train a single agent. Actor-critics with a replay buffer, the slowest,
    train on the quickest tasks.
    """
    continuous = "continuous" in registry.algorithm(algo).capabilities.actions
    quick = continuous and replays(algo)
    team = CARTPOLE if algo in ("ppo", "ddqn") else PENALTY if quick else CRYPTO
    other = "probe/continuous" if quick else SIMPLE if continuous else PENALTY
    tasks = {task.env: task for task in scripts.default_tasks.SMALL}
    tasks["probe/continuous"] = scripts.default_tasks.Task("probe/continuous", "agent", settings=("env.target=1.5",))
    return [tasks[env] for env in ((team, other) if algo in TWO_TASKS else (team,))]


def replays(algo: str) -> bool:
    """Returns True for algorithms with a replay buffer."""
    return "buffer_size" in registry.algorithm(algo).Config.model_fields


def steps_of(algo: str) -> dict[str, int]:
    """Returns the steps that an algorithm needs by environment."""
    if replays(algo) and "continuous" in registry.algorithm(algo).capabilities.actions:
        return dict.fromkeys((PENALTY, "probe/continuous"), 1_200 if algo in ("sac", "masac", "hasac") else 1_500)
    if replays(algo):
        return REPLAYED
    if algo == "pac":
        return {**STEPS, PENALTY: 8_000}
    return ONE_STEP if algo in ("maa2c", "ia2c", "haa2c", "vdac", "seac") else STEPS


@pytest.mark.slow
@pytest.mark.parametrize("algo", LEARNERS)
def test_with_its_defaults_every_algorithm_ends_above_the_random_policy_and_its_start(scripts: Any, algo: str) -> None:
    """In short runs with a fixed seed."""
    for task in tasks_of(algo, scripts):
        steps = steps_of(algo)[task.env]
        settings = [f"steps={steps}", f"eval.every={steps}"]  # evaluated at the start and the end
        settings.append("num_envs=32" if task.env == SIMPLE and steps == STEPS[SIMPLE] else "num_envs=8")
        settings += ["env.episode_limit=100", "eval.episodes=20"] if task.env == CARTPOLE else ["eval.episodes=30"]
        job = scripts.defaults.Job(algo, task, "default", tuple(settings), seed=1000)
        found = scripts.defaults.train(task.team, job.words)
        assert found["score"] > max(found["random"], found["evaluations"][0]), task.name


@pytest.mark.slow
@pytest.mark.parametrize("same", sorted(set(SAME_ALONE.values())))
def test_algorithms_that_are_another_one_with_a_single_agent_have_its_returns(scripts: Any, same: str) -> None:
    """Without kernels, whose sums depend on how many rows a network is evaluated on at a time."""
    (task,) = (task for task in scripts.default_tasks.SMALL if task.env == "particle/simple")
    settings = ("steps=300", "eval.every=300", "eval.episodes=8", "num_envs=4", "kernels=off")
    settings += ("algo.learning_starts=100",) if replays(same) else ("algo.rollout_length=16",)
    returns = {
        algo: scripts.defaults.train(task.team, scripts.defaults.Job(algo, task, "", settings, seed=1).words)[
            "evaluations"
        ]
        for algo in (same, *(algo for algo, of in SAME_ALONE.items() if of == same))
    }
    assert all(found == returns[same] for found in returns.values())
    assert returns[same][0] != returns[same][-1]


def runs(scores: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, Any]]:
    """Returns what defaults.py stores, with a random policy that earns 10."""
    return {
        f"default | {algo} | {task} | {seed}": {
            "score": score, "random": 10.0, "seconds": 60.0, "revision": "abc", "machine": "a laptop", "command": ["x"]
        }
        for task, by_algo in scores.items() for algo, values in by_algo.items() for seed, score in enumerate(values)
    }  # fmt: skip


def test_scores_are_normalized_between_the_random_policy_and_the_best(scripts: Any) -> None:
    levels = {"easy": 30, "hard": None, "open": 50}
    tasks = [scripts.default_tasks.Task(name, "team", steps=1000, threshold=level) for name, level in levels.items()]
    scores = {"easy": {"a": [29.0, 30.0, 31.0], "b": [19.0, 20.0, 21.0]}, "hard": {"a": [9.0, 10.0, 11.0]}}
    scores["open"] = {"b": [20.0, 20.0, 20.0]}
    content = scripts.default_page.collect(runs(scores))
    found = scripts.default_page.by_task(content, tasks)
    easy, hard = found["easy"], found["hard"]
    assert scripts.default_page.normalized(easy, "a").tolist() == pytest.approx([0.95, 1.0, 1.05])
    assert scripts.default_page.normalized(easy, "b").tolist() == pytest.approx([0.45, 0.5, 0.55])
    assert scripts.default_page.is_learned(easy)
    assert not scripts.default_page.is_learned(hard)
    page = scripts.default_page.page(content, tasks)
    assert "| a | 3 | 1 | **1.00** | 0.95 to 1.05 | 1.00 | 1.00 |  | 1.0 |" in page  # nobody learns the hard task
    # The open one is learned, not solved.
    assert "| b | 3 | 2 | **0.76** | 0.72 to 0.78 | 0.50 | 0.75 |  | 1.0 |" in page
    assert "| algorithm | `easy` | `hard` | `open` |" in page
    assert "| a | 1.00 ± 0.12 | – |  |" in page


def test_a_single_run_is_neither_the_best_nor_below_random(scripts: Any) -> None:
    """The one of `best` is twice as good as the mean of `a`, which other scores are measured by; it has no interval."""
    tasks = [scripts.default_tasks.Task("easy", "team")]
    scores = {"a": [29.0, 30.0, 31.0], "best": [50.0], "low": [5.0]}
    page = scripts.default_page.page(scripts.default_page.collect(runs({"easy": scores})), tasks)
    assert "| best | 1 | 1 | **2.00** |  | 2.00 |" in page
    assert "| a | 3 | 1 | **1.00** | 0.95 to 1.05 |" in page
    assert "| low | -0.25 |" in page
    assert "▼" not in page


def test_scores_whose_interval_is_below_random_are_red(scripts: Any) -> None:
    tasks = [scripts.default_tasks.Task("easy", "team")]
    scores = {"a": [29.0, 30.0, 31.0], "low": [4.0, 5.0, 6.0], "wide": [0.0, 5.0, 12.0]}
    page = scripts.default_page.page(scripts.default_page.collect(runs({"easy": scores})), tasks)
    assert '<span class="below-random">-0.25 ± 0.12 ▼</span>' in page
    assert page.count("▼") == 1


PAGES = [
    (
        "SPREAD",
        {0: {"mappo": [-357.0, -360.0, -363.0]}},
        "| MAPPO | **-120.0 ± 2.5** | 3 | 1 M | 1.0 | -133.5 | 20 M |",
    ),
    ("SPREAD", {0: {"mappo": [-450.0, -453.0]}}, "| -133.5 (better) | 20 M |"),
    (
        "SIZES",  # returns of one agent
        {0: {"mat": [-390.0], "mappo": [-357.0, -360.0, -363.0]}, 2: {"mat": [-6000.0]}},
        "| 3 | MAPPO | **-120.0 ± 2.5** | 3.3 | 3 | 1.0 |\n| 3 | MAT | **-130.0** | 3.3 | 1 | 1.0 |\n"
        "| 10 | MAT | **-600.0** | 1.0 | 1 | 1.0 |",
    ),
    (
        "TIME",  # algorithms without replay take twice the steps
        {0: {"vdn": [30.0, 31.0, 32.0], "qmix": [20.0], "pqn_vdn": [40.0], "pqn_qmix": [50.0]}},
        "| task | steps | random | VDN | QMIX | PQN-VDN | PQN-QMIX |\n| --- | --- | --- | --- | --- | --- | --- |\n"
        "| `particle/simple_adversary` | 200 k or 400 k | 10 | 31 ± 2.48 | 20 | 40 | 50 |\n"
        "| minutes per run |  |  | 1.00 | 1.00 | 1.00 | 1.00 |",
    ),
    (
        "GYMNASIUM",
        {0: {"ppo": [475.0, 500.0, 474.0]}},
        "| `CartPole-v1` | PPO | 100 k | 10 | 483 ± 36.59 | 475 | 2 of 3 |",
    ),
]
"""A group of tasks, scores by task and algorithm, and lines of its page."""


@pytest.mark.parametrize(("group", "scores", "lines"), PAGES)
def test_pages_of_groups_compare_results_with_published_ones(
    scripts: Any, group: str, scores: dict[int, dict[str, list[float]]], lines: str
) -> None:
    tasks = getattr(scripts.default_tasks, group)
    content = scripts.default_page.collect(runs({tasks[number].name: found for number, found in scores.items()}))
    page = getattr(scripts.default_page, f"{group.lower()}_page")(content, tasks)
    assert lines in page
