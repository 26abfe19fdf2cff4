"""Upper bound of the return on particle/simple_speaker_listener: beam search in the simulator, and the script.

    python benchmarks/listener.py [--episodes 10000] [--width 128] [--variant openai]

In the first step there is no message, and the listener moves toward the landmarks' center like `follow_speaker`.
From then on the search knows the goal and keeps the `width` best partial trajectories of every episode, ranked by
their return so far and the distance at which they would come to rest. A wider beam improves the result by hundredths.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.core.seeds import generator
from coterie.core.types import Action
from coterie.envs.worlds.particle.communication import SimpleSpeakerListener, SimpleSpeakerListenerConfig
from coterie.envs.worlds.particle.physics import Variant
from coterie.envs.worlds.particle.scripts import follow_speaker

STEPS, MOVES = 25, 5
State = dict[str, Tensor]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--variant", choices=("openai", "mpe2"), default="openai")
    given = parser.parse_args(argv)
    world = SimpleSpeakerListener(SimpleSpeakerListenerConfig(variant=given.variant))
    noise = torch.rand(given.episodes, world.reset_noise_size, generator=generator(0, "listener"))
    with torch.inference_mode():
        scripted = torch.cat([play(world, part, given.variant) for part in noise.split(500)])
        searched = torch.cat([search(world, part, given.variant, given.width) for part in noise.split(500)])
    for name, returns in (
        ("follow_speaker", scripted),
        ("search", searched),
        ("search minus script", searched - scripted),
    ):
        error = float(returns.std()) / len(returns) ** 0.5
        print(f"{name:<20} {float(returns.mean()):8.3f} +- {error:.3f}   return per agent, {len(returns):,} episodes")


def play(world: SimpleSpeakerListener, noise: Tensor, variant: Variant) -> Tensor:
    """Return per agent [B] of the script."""
    state, returns = world.reset(noise), torch.zeros(len(noise))
    for _ in range(STEPS):
        state, outcome = world.step(state, follow_speaker(world.observe(state).obs, variant), None)
        returns += outcome.reward[:, 0]
    return returns


def search(world: SimpleSpeakerListener, noise: Tensor, variant: Variant, width: int) -> Tensor:
    """Return per agent [B] of the best moves found by the search."""
    state = world.reset(noise)
    message = world.observe(state).obs["speaker"].argmax(-1, keepdim=True)
    state, outcome = world.step(state, follow_speaker(world.observe(state).obs, variant), None)
    returns, kept = outcome.reward[:, :1], 1
    for _ in range(STEPS - 1):
        state = {name: x.repeat_interleave(MOVES, 0) for name, x in state.items()}
        move = torch.arange(MOVES).repeat(len(noise) * kept).view(-1, 1, 1)
        speech = message.repeat_interleave(kept * MOVES, 0)
        state, outcome = world.step(state, {"speaker": Action(speech), "listener": Action(move)}, None)
        returns = returns.repeat_interleave(MOVES, 1) + outcome.reward[:, 0].view(len(noise), -1)
        kept = min(width, kept * MOVES)
        best = (returns - _remaining_cost(world, state, message, len(noise))).topk(kept, 1).indices
        returns = returns.gather(1, best)
        index = (best + torch.arange(len(noise)).unsqueeze(1) * (len(move) // len(noise))).flatten()
        state = {name: x[index] for name, x in state.items()}
    return returns.amax(1)


def _remaining_cost(world: SimpleSpeakerListener, state: State, message: Tensor, episodes: int) -> Tensor:
    """Estimated remaining cost [B, W] of partial trajectories: a multiple of the squared distance at rest."""
    obs = world.observe(state).obs["listener"][:, 0]
    vel, landmarks = obs[:, :2], obs[:, 2:8].view(-1, 3, 2)
    goal = landmarks.gather(1, message[:, 0].repeat_interleave(len(obs) // episodes, 0).view(-1, 1, 1).expand(-1, 1, 2))
    return 3 * (goal[:, 0] - 0.15 * vel).square().sum(-1).view(episodes, -1)


if __name__ == "__main__":
    main()
