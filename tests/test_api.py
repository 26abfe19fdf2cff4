"""The Python API: commands as functions, and policies on NumPy observations in environments of other packages."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from mpe2 import simple_speaker_listener_v4, simple_spread_v3, simple_tag_v3

import coterie
from coterie.commands.player import Loaded, Player, to_native
from coterie.core.errors import UserError
from coterie.core.specs import RoleSpec, TeamSpec
from coterie.core.types import Action, Timestep
from coterie.policies.base import RandomPolicy
from coterie.policies.stochastic import StochasticPolicy

QUICK = {
    "num_envs": 4,
    "rollout_length": 26,
    "steps": 100,
    "threads": 1,
    "progress": "off",
    "device": "cpu",
    "eval.episodes": 4,
    "log.tensorboard": False,
    "algo.epochs": 1,
}


def trained(folder: Path, **settings: Any) -> coterie.TrainingResult:
    return coterie.train(out=folder, **QUICK | settings)


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> coterie.TrainingResult:
    return trained(tmp_path_factory.mktemp("run") / "spread", algo="mappo", env="particle/simple_spread")


@pytest.fixture(scope="module")
def tag(tmp_path_factory: pytest.TempPathFactory) -> coterie.TrainingResult:
    settings = {"env": "particle/simple_tag", "teams.agent.algo": "ippo", "teams.agent.algo.rnn": "gru"}
    settings |= {"algo.normalize_obs": False, "teams.agent.algo.normalize_obs": False}
    return trained(tmp_path_factory.mktemp("run") / "tag", algo="mappo", **settings)


def randomized(loaded: Loaded) -> Loaded:
    """Randomizes the weights, so that actions depend on observations. A new actor's last layer is close to zero."""
    generator = torch.Generator().manual_seed(0)
    for policy in loaded.policies.values():
        assert isinstance(policy, StochasticPolicy)
        with torch.no_grad():
            for weight in policy.actor.parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.5)
    return loaded


# ------------------------------------------------------------------------------------------------------------ importing


IMPORTS = (
    ("import coterie", "torch numpy pydantic gymnasium"),
    ("import coterie.envs.video", "imageio imageio_ffmpeg PIL numpy"),
    ("import coterie.config.samplers", "torch"),
    ("import coterie.playing.viewer", "torch"),
    ("import coterie.runs.loggers", "torch tensorboard wandb mlflow"),
    ("main(['--help'])", "torch"),
    ("main(['train', '--lr', '3'])", "torch"),  # settings as options, and commands of other programs
    ("main('train --config=qmix with t_max=3'.split())", "torch"),
    ("main('train --initialize-from x'.split())", "torch"),
    (
        "from coterie.assembly.resolve import resolve; resolve(['algo=random', 'env=particle/simple_tag'])",
        "matplotlib coterie.algos.ppo coterie.envs.worlds.particle.spread",
    ),
)
"""Statements of one program in their order, and modules that are not imported when each of them has been executed."""


@pytest.mark.slow
def test_only_what_is_needed_is_imported():
    lines = ["import sys", "from coterie.__main__ import main", "found = []"]
    for statement, modules in IMPORTS:
        lines += [statement, f"found += [({statement!r}, m) for m in {modules.split()} if m in sys.modules]"]
    code = "\n".join([*lines, "sys.exit(str(found) if found else 0)"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_name_exists_and_no_module_hides_it():
    for name in coterie.__all__:
        assert getattr(coterie, name) is not None
        # Importing a module of this name would hide a function. The package `runs` is the function itself.
        assert importlib.util.find_spec(f"coterie.{name}") is None or name == "runs"
    importlib.import_module("coterie.runs.folder")
    assert callable(coterie.runs)
    assert set(coterie.__all__) <= set(dir(coterie))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        coterie.trian  # noqa: B018


# ------------------------------------------------------------------------------------------------ commands as functions


@pytest.mark.slow
def test_train_evaluate_resume_and_play_are_functions(spread: coterie.TrainingResult, tmp_path: Path):
    assert spread.exit_code == 0
    result = trained(tmp_path / "run", algo={"name": "ippo", "lr": 1e-3}, env="particle/simple_spread")
    report = coterie.evaluate(result, episodes=6, mode="greedy")
    assert report["teams"]["agent"]["length_mean"] == 25
    assert report["algo"] == "ippo"
    assert report["steps"] <= 100
    assert coterie.evaluate(str(result.run), episodes=6, mode="greedy") == report
    assert coterie.evaluate(coterie.load(result), episodes=6, mode="greedy")["teams"] == report["teams"]
    resumed = coterie.resume(result.run, steps=200, **{"eval.episodes": 8})
    assert resumed.summary.steps >= 200
    assert coterie.load(result, checkpoint="last").steps == resumed.summary.steps
    assert coterie.play(result, video=tmp_path / "a.gif", size=64) == tmp_path / "a.gif"


@pytest.mark.slow
def test_algorithm_and_environment_are_the_first_arguments_and_overwrite_replaces_a_run(tmp_path: Path):
    quick: dict[str, Any] = QUICK | {"out": tmp_path / "run"}
    first = coterie.train("ippo", "particle/simple", **quick)
    assert coterie.evaluate(first, episodes=2)["algo"] == "ippo"
    (tmp_path / "run" / "notes.txt").write_text("of the first run")
    with pytest.raises(UserError, match=r"already contains a run"):
        coterie.train("ippo", "particle/simple", **quick)
    with pytest.raises(UserError, match=r"algo\.lrr"):  # nothing is replaced then
        coterie.train({"name": "iql", "lrr": 1}, "particle/simple", **quick, overwrite=True)
    assert coterie.evaluate(first, episodes=2)["algo"] == "ippo"
    del quick["algo.epochs"]
    second = coterie.train("iql", "particle/simple", **quick, overwrite=True)
    assert coterie.evaluate(second, episodes=2)["algo"] == "iql"
    assert not (tmp_path / "run" / "notes.txt").exists()


def test_overwrite_replaces_runs_only(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"already contains files\. Choose another folder"):
        trained(tmp_path, algo="ippo", env="particle/simple", overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    with pytest.raises(UserError, match=r"overwrite=True: without out="):
        coterie.train("ippo", "particle/simple", overwrite=True, progress="off")


def test_baselines_need_no_run(tmp_path: Path):
    report = coterie.evaluate(algo="random", env="particle/simple_spread", episodes=400, threads=1)
    assert -85 < report["teams"]["agent"]["return_mean"] < -73
    same = coterie.evaluate(algo="random", env="particle/simple_spread", episodes=400, threads=1)
    other = coterie.evaluate(algo="random", env="particle/simple_spread", episodes=400, threads=1, seed=7)
    assert report == same != other


def test_make_returns_a_batch_of_environments():
    env = coterie.make("particle/simple_spread", num_envs=3, agents=4)
    assert isinstance(env, coterie.VectorEnv)
    assert env.reset().obs["agent"].shape[:2] == (3, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: coterie.train(algo="mapo"), "Did you mean 'mappo'"),
        (lambda run: coterie.train(**{"algo.lrr": 1}), "algo.lr"),
        (lambda run: coterie.evaluate(), "run: missing. Pass a run, or algo= and env="),
        (lambda run: coterie.evaluate(run, algo="random"), "algo: cannot be combined with a run"),
        (lambda run: coterie.evaluate(3), "not a run. Pass its folder"),
        (lambda run: coterie.load("nowhere"), "nowhere: no such run"),
        (lambda run: coterie.load(run, checkpoint="frist"), "no checkpoint 'frist'"),
        (lambda run: coterie.load(run).player("agnet"), "Did you mean 'agent'"),
        (lambda run: coterie.load(run).player(mode="gredy"), "Did you mean 'greedy'"),
        (lambda run: coterie.resume(run, seed=3), "seed=3: cannot change when a run is resumed"),
        (lambda run: coterie.make("particle/simple_spread", agnets=3), "agents"),
    ],
)
def test_invalid_calls_raise_one_line_errors_that_name_the_fix(spread: coterie.TrainingResult, call: Any, message: str):
    with pytest.raises(UserError, match=message) as raised:
        call(spread.run)
    assert "\n" not in str(raised.value)


# ----------------------------------------------------------------------------- acting in environments of other packages


def batched(policy: StochasticPolicy, obs: dict[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns the greedy actions of an episode by role, [T, n], computed as one batch or, with an RNN, one sequence."""
    stacked = {role: torch.from_numpy(np.stack(values)) for role, values in obs.items()}
    steps, n = len(next(iter(stacked.values()))), policy.team.n
    first = torch.zeros(steps, n, dtype=torch.bool)
    first[0] = True
    with torch.inference_mode():
        if policy.initial_hidden_state(1):
            sequence = {role: x.unsqueeze(1) for role, x in stacked.items()}
            out, _ = policy.net(sequence, first.unsqueeze(1), policy.initial_hidden_state(1))
            return {role: out[role].squeeze(1).argmax(-1).numpy() for role in obs}
        alive, acted = torch.ones(steps, n, dtype=torch.bool), torch.ones(steps, dtype=torch.bool)
        actions, _, _ = policy.act(Timestep(stacked, {}, {}, alive, first, acted), {}, None, "greedy")
    return {role: actions[role].discrete[..., 0].numpy() for role in obs}  # pyright: ignore[reportOptionalSubscript]


def episode(env: Any, player: Player) -> tuple[list[dict[str, np.ndarray]], list[dict[str, Any]]]:
    """Plays an episode of a PettingZoo parallel environment. Returns the observations and actions of all timesteps."""
    obs, _ = env.reset(seed=3)
    observations, actions = [], []
    while env.agents:
        action = player.act(obs)
        assert all(env.action_space(agent).contains(action[agent]) for agent in env.agents)
        observations.append(obs)
        actions.append(action)
        obs, *_ = env.step(action)
    return observations, actions


@pytest.mark.slow
@pytest.mark.parametrize("rnn", ["none", "gru", "lstm"])
def test_greedy_actions_equal_those_of_the_batched_policy(tmp_path: Path, rnn: str):
    settings = {"algo.rnn": rnn, "algo.rnn_size": 8, "algo.normalize_obs": False}
    loaded = randomized(coterie.load(trained(tmp_path / "run", env="particle/simple_spread", **settings)))
    player = loaded.player(mode="greedy")
    for _ in range(2):  # reset() clears the hidden state of the first episode
        player.reset()
        observations, actions = episode(simple_spread_v3.parallel_env(max_cycles=25), player)
        assert len(actions) == 25
        agents = loaded.teams["agent"].agents
        expected = batched(
            loaded.policies["agent"],  # pyright: ignore[reportArgumentType]
            {"agent": [np.stack([obs[agent] for agent in agents]) for obs in observations]},
        )["agent"]
        found = np.array([[action[agent] for agent in agents] for action in actions])
        assert np.array_equal(found, expected)
        assert len(np.unique(found)) > 2


@pytest.mark.slow
def test_two_teams_act_together_or_separately(tag: coterie.TrainingResult):
    loaded = randomized(coterie.load(tag))
    observations, actions = episode(simple_tag_v3.parallel_env(max_cycles=25), loaded.player(mode="greedy"))
    for team, policy in loaded.policies.items():
        agents = loaded.teams[team].agents
        stacked = [np.stack([obs[agent] for agent in agents]) for obs in observations]
        expected = batched(policy, {team: stacked})[team]  # pyright: ignore[reportArgumentType]
        assert np.array_equal([[action[agent] for agent in agents] for action in actions], expected)
        single = loaded.player(team, mode="greedy")
        assert [single.act(obs) for obs in observations] == [{agent: a[agent] for agent in agents} for a in actions]


@pytest.mark.slow
def test_roles_of_a_team_act_in_their_own_spaces(tmp_path: Path):
    loaded = coterie.load(trained(tmp_path / "run", env="particle/simple_speaker_listener"))
    _, actions = episode(simple_speaker_listener_v4.parallel_env(max_cycles=25), loaded.player(mode="sample"))
    assert {action["listener_0"] for action in actions} == set(range(5))
    assert {action["speaker_0"] for action in actions} == set(range(3))


@pytest.mark.slow
def test_continuous_actions_are_within_the_bounds_of_the_space(tmp_path: Path):
    loaded = coterie.load(
        trained(tmp_path / "run", algo="ippo", env="particle/simple_spread", **{"env.actions": "continuous"})
    )
    env = simple_spread_v3.parallel_env(max_cycles=25, continuous_actions=True)
    _, taken = episode(env, loaded.player(mode="sample"))
    actions = np.stack([a["agent_0"] for a in taken])
    assert actions.dtype == np.float32
    assert 0 <= actions.min() < 0.2 < 0.8 < actions.max() <= 1


# --------------------------------------------------------------------------------------------------- inputs and outputs


def test_actions_have_the_format_of_the_observations(spread: coterie.TrainingResult):
    player = randomized(coterie.load(spread)).player(mode="greedy")
    obs = np.random.default_rng(0).normal(size=(3, 18)).astype(np.float32)
    by_role = player.act({"agent": obs})["agent"]
    by_agent = player.act({f"agent_{i}": obs[i].tolist() for i in range(3)})
    assert by_role.shape == (3,)
    assert by_agent == {f"agent_{i}": by_role[i] for i in range(3)}
    assert all(type(action) is int for action in by_agent.values())


@pytest.mark.slow
def test_a_single_agent_uses_arrays_without_a_dict(tmp_path: Path):
    loaded = coterie.load(trained(tmp_path / "run", algo="ppo", env="particle/simple"))
    assert loaded.act(np.zeros(4)) in range(5)
    loaded.reset(seed=1)
    drawn = [loaded.act(np.zeros(4)) for _ in range(20)]
    loaded.reset(seed=1)
    assert drawn == [loaded.act(np.zeros(4)) for _ in range(20)]
    assert len(set(drawn)) > 1


@pytest.mark.slow
def test_dead_agents_do_not_act_and_start_again_with_the_initial_hidden_state(tag: coterie.TrainingResult):
    loaded = randomized(coterie.load(tag))
    player, fresh = loaded.player("agent", "greedy"), loaded.player("agent", "greedy")
    obs = np.random.default_rng(0).normal(size=(30, 14)).astype(np.float32)
    for x in obs[:10]:
        player.act({"agent_0": x})
    assert player.act({}) == {}
    assert player.act({"adversary_0": np.zeros(16)}) == {}
    assert [player.act({"agent_0": x}) for x in obs[10:]] == [fresh.act({"agent_0": x}) for x in obs[10:]]


def test_an_action_mask_restricts_the_actions(spread: coterie.TrainingResult):
    player = coterie.load(spread).player(mode="sample")
    obs = {f"agent_{i}": np.zeros(18) for i in range(3)}
    drawn = [player.act(obs, action_mask={"agent_1": [0, 0, 1, 0, 0]}) for _ in range(20)]
    assert {actions["agent_1"] for actions in drawn} == {2}
    assert len({actions["agent_0"] for actions in drawn}) > 1


@pytest.mark.parametrize(
    ("obs", "mask", "message"),
    [
        ({"agent_0": np.zeros(17)}, None, r"obs of 'agent_0' has shape \[17\], expected \[18\]"),
        ({"agent": np.zeros((2, 18))}, None, "obs of role 'agent' has 2 agents, expected 3"),
        ({"agnet_0": np.zeros(18)}, None, "the run has no agent or role 'agnet_0'. Did you mean 'agent_0'"),
        ({"agent_0": "north"}, None, "obs of 'agent_0' is 'north'. Pass numbers"),
        ({"agent_0": np.full(18, np.nan)}, None, r"holds nan at index \[0\]"),
        (np.zeros(18), None, "got one array for 3 agents"),
        ({"agent_0": np.zeros(18)}, {"agent_0": [1, 1]}, r"action_mask of 'agent_0' has shape \[2\], expected \[5\]"),
        ({"agent_0": np.zeros(18)}, {"agent_0": [0] * 5}, "leaves no choice"),
    ],
)
def test_invalid_observations_and_masks_raise_errors(spread: coterie.TrainingResult, obs: Any, mask: Any, message: str):
    with pytest.raises(UserError, match=message):
        coterie.load(spread).act(obs, mask)


def test_actions_are_converted_to_every_kind_of_space():
    box = spaces.Box(np.float32([0, -2]), np.float32([1, 2]))
    discrete, numbers = torch.tensor([[[1, 2, 0]]]), torch.tensor([[[-1.0, 1.5]]])
    assert to_native(Action(discrete[..., :1]), spaces.Discrete(3, start=5)) == [6]
    (choices,) = to_native(Action(discrete), spaces.MultiDiscrete([2, 3, 2]))
    assert choices.tolist() == [1, 2, 0]
    (position,) = to_native(Action(None, numbers), box)
    assert position.tolist() == [0, 2]
    hybrid = spaces.Tuple([spaces.Discrete(2), box, spaces.MultiDiscrete([3, 2])])
    ((first, second, third),) = to_native(Action(discrete, numbers), hybrid)
    assert (first, second.tolist(), third.tolist()) == (1, [0, 2], [2, 0])
    assert hybrid.contains((first, second, third))


def test_hybrid_actions_are_tuples():
    hybrid = spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))])
    role = RoleSpec("mover", "mover", ("a", "b"), spaces.Box(-1, 1, (3,)), hybrid)
    team = TeamSpec("mover", (role,), 0, 2, (0,), False, False, {}, True)
    player = Player({"mover": RandomPolicy(team, torch.device("cpu"))}, {"mover": "sample"}, 0, [])
    by_role = player.act({"mover": np.zeros((2, 3))})["mover"]
    assert len(by_role) == 2
    assert all(hybrid.contains(action) for action in by_role)
