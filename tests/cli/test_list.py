"""What policies and critics show of themselves is what they act by: masks, memory and exploration included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from algo_worlds import Everything, env_of
from coterie.algos.algorithm import AlgorithmContext, ValueEstimator
from coterie.algos.replay.memory import no_memory_check
from coterie.config import registry
from coterie.core.specs import TeamSpec
from coterie.core.tree import tree_map
from coterie.core.types import Timestep
from coterie.math.exploration import choice_probs, epsilon_greedy
from coterie.policies.base import ActionDistribution, InspectablePolicy, Mode, RandomPolicy
from coterie.training.collector import Collector

CPU = torch.device("cpu")
COPIES = 3000


def test_logits_become_probabilities_of_each_component():
    logits = torch.tensor([0.0, 0.0, torch.tensor(3.0).log(), 1.0, 1.0])
    assert torch.allclose(choice_probs(logits, (3, 2), None), torch.tensor([0.2, 0.2, 0.6, 0.5, 0.5]))
    mask = torch.tensor([True, False, True, False, True])
    assert torch.allclose(choice_probs(logits, (3, 2), mask), torch.tensor([0.25, 0.0, 0.75, 0.0, 1.0]))


def test_epsilon_greedy_shares_epsilon_among_what_is_available():
    q = torch.tensor([5.0, 1.0, 2.0, -1.0, -3.0])
    found = epsilon_greedy(q, (3, 2), None, 0.3)
    assert torch.allclose(found, torch.tensor([0.8, 0.1, 0.1, 0.85, 0.15]))
    mask = torch.tensor([False, True, True, True, True])
    found = epsilon_greedy(q, (3, 2), mask, 0.3)
    assert torch.allclose(found, torch.tensor([0.0, 0.15, 0.85, 0.85, 0.15]))


def learner(name: str, kind: str, **given: Any):
    """An algorithm on the world with everything, its networks far from even, and a row of many copies."""
    env = env_of(Everything(kind, dead=0.0), COPIES)
    (team,) = env.spec.default_teams()
    cls = registry.algorithm(name)
    config = cls.Config(**given)
    with no_memory_check():
        made = cls(config, AlgorithmContext(team=team, num_envs=COPIES, seed=0, device=CPU))
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for network in made.policy.networks:
            for weight in network.parameters():
                weight.copy_(torch.randn(weight.shape, generator=draw) * 0.4)
    return env, team, made


def everyone_the_same(row: Timestep) -> Timestep:
    """Every copy sees what the first one does: what they draw is then from one distribution."""
    return tree_map(lambda x: x[:1].expand_as(x).clone(), row)


def frequencies(team: TeamSpec, actions: dict[str, Any]) -> dict[str, torch.Tensor]:
    """How often each choice was taken, by role [n, sum A]."""
    found = {}
    for role in team.roles:
        picks = actions[role.name].discrete
        if picks is None:
            continue
        hot = [
            torch.nn.functional.one_hot(picks[..., k], size).float().mean(0)
            for k, size in enumerate(role.action.choices)
        ]
        found[role.name] = torch.cat(hot, -1)
    return found


CASES = [
    ("ppo", "discrete", {}),
    ("ppo", "multi_discrete", {"memory": "gru"}),
    ("ppo", "hybrid", {}),
    ("coma", "discrete", {"epsilon": 0.6, "last_action": True}),
    ("iql", "multi_discrete", {"epsilon": 0.4}),
    ("maddpg", "discrete", {}),
    ("sac", "hybrid", {}),
]


@pytest.mark.parametrize("mode", ["sample", "explore"])
@pytest.mark.parametrize(("name", "kind", "given"), CASES, ids=[f"{name}-{kind}" for name, kind, _ in CASES])
def test_what_is_shown_is_how_often_it_is_done(name: str, kind: str, given: dict[str, Any], mode: Mode):
    env, team, made = learner(name, kind, **given)
    policy = made.policy
    assert isinstance(policy, InspectablePolicy)
    row = everyone_the_same(env.reset(3))
    with torch.inference_mode():
        hidden_state = policy.initial_hidden_state(COPIES)
        (noise,) = policy.draw_noise(1, COPIES, torch.Generator().manual_seed(2))
        shown = policy.action_distribution(row, hidden_state, mode)
        actions, _, _ = policy.act(row, hidden_state, noise, mode)
    for role, found in frequencies(team, actions).items():
        told = shown[role].probability
        assert told is not None
        assert torch.allclose(told, told[:1].expand_as(told))
        assert (found - told[0]).abs().max() < 5 * 0.5 / COPIES**0.5  # five standard errors at the most
        assert told[0].max() > told[0].min() + 0.1  # not what an even policy would show
        mask = row.action_mask[role]
        assert not mask.all()
        assert told[~mask].abs().max() == 0
        components = {r.name: len(r.action.choices) for r in team.roles}[role]
        assert torch.allclose(told.sum(-1), torch.tensor(float(components)), atol=1e-5)


def test_without_the_mask_something_else_would_be_shown():
    env, _, made = learner("ppo", "discrete")
    row = everyone_the_same(env.reset(3))
    with torch.inference_mode():
        told = made.policy.action_distribution(row, {}, "sample")["guard"].probability
        blind = made.policy.action_distribution(Timestep(**vars(row) | {"action_mask": {}}), {}, "sample")[
            "guard"
        ].probability
    assert (told - blind).abs().max() > 0.05


def test_the_log_probability_that_a_policy_notes_is_the_one_that_is_shown():
    env, team, made = learner("ppo", "discrete", memory="gru")
    row = env.reset(5)
    with torch.inference_mode():
        hidden_state = {"h": torch.randn(COPIES, team.n, 128, generator=torch.Generator().manual_seed(4))}
        row = Timestep(**vars(row) | {"first": torch.zeros_like(row.first)})
        (noise,) = made.policy.draw_noise(1, COPIES, torch.Generator().manual_seed(2))
        shown = made.policy.action_distribution(row, hidden_state, "sample")
        actions, _, noted = made.policy.act(row, hidden_state, noise, "sample")
        forgetful = made.policy.action_distribution(row, made.policy.initial_hidden_state(COPIES), "sample")
    at = torch.cat([shown[r.name].probability.gather(-1, actions[r.name].discrete) for r in team.roles], 1)
    assert torch.allclose(at[..., 0].log(), noted["log_prob"], atol=1e-5)
    assert not torch.allclose(shown["guard"].probability, forgetful["guard"].probability, atol=1e-2)


def test_numbers_show_their_middle_and_their_spread():
    env, _, made = learner("ppo", "continuous", init_std=0.5)
    row = everyone_the_same(env.reset(3))
    with torch.inference_mode():
        (noise,) = made.policy.draw_noise(1, COPIES, torch.Generator().manual_seed(2))
        thought = made.policy.action_distribution(row, {}, "sample")["guard"]
        done = made.policy.act(row, {}, noise, "sample")[0]["guard"].continuous
    assert thought.probability is None
    assert (done.mean(0) - thought.mean[0]).abs().max() < 5 * float(thought.spread.max()) / COPIES**0.5
    assert torch.allclose(done.std(0) / thought.spread[0], torch.tensor(1.0), atol=0.1)


def test_q_is_shown_for_masked_choices_too_and_greedy_takes_the_best_that_is_left():
    env, _, made = learner("iql", "discrete")
    row = everyone_the_same(env.reset(3))
    with torch.inference_mode():
        thought = made.policy.action_distribution(row, {}, "greedy")["guard"]
        done = made.policy.act(row, {}, None, "greedy")[0]["guard"].discrete
    assert thought.q.isfinite().all()
    assert torch.equal(thought.probability.argmax(-1, keepdim=True), done)
    assert torch.equal(thought.probability.amax(-1), torch.ones(COPIES, 2))


def test_random_agents_show_even_chances_among_what_they_can_do():
    env = env_of(Everything("discrete", dead=0.0), 1)
    (team,) = env.spec.default_teams()
    row = env.reset(0)
    row = Timestep(
        **vars(row) | {"action_mask": {"guard": torch.tensor([[[True, True, False], [False, True, False]]])}}
    )
    thought: ActionDistribution = RandomPolicy(team, CPU).action_distribution(row, {}, "sample")["guard"]
    assert torch.equal(thought.probability, torch.tensor([[[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]]))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("ppo", {}),
        ("ppo", {"memory": "gru"}),
        ("mappo", {}),
        ("mappo", {"memory": "lstm"}),
        ("poca", {}),
        ("poca", {"memory": "gru"}),
    ],
)
def test_a_critic_asked_row_by_row_says_what_it_says_of_a_whole_window(
    name: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    env = env_of(Everything("discrete", dead=0.0), 4)
    (team,) = env.spec.default_teams()
    cls = registry.algorithm(name)
    preset: dict[str, Any] = {"critic": "joint"} if name == "mappo" else {}
    made = cls(
        cls.Config(**preset, **given, rollout_length=12, normalise_value=True),
        AlgorithmContext(team=team, num_envs=4, seed=0, device=CPU, rollout_length=12),
    )
    collector = Collector(env, {team.name: made.policy}, 0)
    window = collector.advance(12)[0][team.name]
    made.update(window, 0.0)  # its values have a scale now
    assert isinstance(made, ValueEstimator)
    window = collector.advance(12)[0][team.name]
    found: list[torch.Tensor] = []
    values = cls._values

    def spied(self: Any, *rest: Any) -> Any:
        out = values(self, *rest)
        found.append((out[0] if name == "poca" else out).clone())
        return out

    monkeypatch.setattr(cls, "_values", spied)
    state = made.state_dict()
    hidden_state = {n: x[:, :1] if name == "poca" else x for n, x in state["hidden_state"].items()}
    with torch.inference_mode():
        mean, scale = made._value_scale()
        made._targets(window)
        real = (found[0] * scale + mean)[..., 0]
        whole = real[:, :, :1].expand(-1, -1, team.n) if name == "poca" else real[:-1]
        again = cls(made.config, AlgorithmContext(team=team, num_envs=4, seed=7, device=CPU, rollout_length=12))
        again.policy.load_state_dict(state["policy"])
        again.load_critic(state)
        told = []
        for t in range(12):
            row = Timestep(
                {k: x[t] for k, x in window.obs.items()}, {}, {}, window.alive[t], window.first[t], window.acted[t]
            )
            value, hidden_state = again.estimate_value(row, hidden_state)
            told.append(value)
    assert torch.allclose(torch.stack(told), whole, atol=1e-4)
    assert set(hidden_state) == set(again.start_value_estimation(4))
    assert whole.std() > 1e-3
