"""The memory probe: its cue, its question, and memoryless policies."""

from __future__ import annotations

from coterie.core.types import Action
from probeplay import is_close_to, make_env, probe_of, step_discrete


def test_the_cue_is_shown_once_and_requested_later():
    env = make_env("memory", 6, delay=3, cues=3)
    timestep = env.reset()
    cue = timestep.obs["agent"][:, 0, :3].argmax(1)
    assert timestep.obs["agent"][:, 0, :3].sum(1).tolist() == [1] * 6
    assert len(cue.unique()) > 1
    answer = {"agent": Action(cue[:, None, None])}
    asks, rewards = [timestep.obs["agent"][0, 0, 3].item()], []
    for _ in range(4):
        step, timestep = env.step(answer)
        assert not timestep.obs["agent"][..., :3].any()
        asks.append(timestep.obs["agent"][0, 0, 3].item())
        rewards.append(step.reward[:, 0].tolist())
    assert asks[:4] == [0, 0, 0, 1]
    assert rewards == [[0] * 6, [0] * 6, [0] * 6, [1] * 6]


def test_memoryless_policies_are_no_better_than_guessing():
    # When asked, all environments have equal observations, so a memoryless policy gives one answer to all of them.
    env = make_env("memory", 4000)
    total = []
    for answer in (0, 1):
        env.reset(2)
        step_discrete(env, answer)
        total.append(step_discrete(env, answer).reward[:, 0].double())
    control_return = probe_of(env).reference.control_return
    assert control_return == 0
    assert all(is_close_to(rewards, control_return) for rewards in total)
