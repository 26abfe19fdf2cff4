"""How much a listener can earn on particle/simple_speaker_listener: a search on the world's own rules, by the script.

    python benchmarks/listener.py [--episodes 10000] [--width 128] [--variant openai]

In the first step nobody has spoken yet, and the listener walks to the landmarks' middle, as `follow_speaker` does; from
then on the search knows the goal and keeps the `width` best beginnings of every episode, by what they earned and by how
near they would come to rest. More width finds nothing better than some hundredths.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from coterie.envs.particle.physics import Variant
from coterie.envs.particle.scripts import follow_speaker
from coterie.envs.particle.speaker_listener import SimpleSpeakerListener, SimpleSpeakerListenerConfig
from coterie.seeds import generator
from coterie.types import Action

STEPS, MOVES = 25, 5
Beginnings = dict[str, Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--variant", choices=("openai", "mpe2"), default="openai")
    given = parser.parse_args()
    world = SimpleSpeakerListener(SimpleSpeakerListenerConfig(variant=given.variant))
    noise = torch.rand(given.episodes, world.restart_noise, generator=generator(0, "listener"))
    with torch.inference_mode():
        scripted = torch.cat([play(world, part, given.variant) for part in noise.split(500)])
        planned = torch.cat([search(world, part, given.variant, given.width) for part in noise.split(500)])
    for name, earned in (("follow_speaker", scripted), ("search", planned), ("search less script", planned - scripted)):
        error = float(earned.std()) / len(earned) ** 0.5
        print(f"{name:<20} {float(earned.mean()):8.3f} +- {error:.3f}   an agent's return, {len(earned):,} episodes")


def play(world: SimpleSpeakerListener, noise: Tensor, variant: Variant) -> Tensor:
    """What an agent earns in these episodes [B] by the script."""
    state, earned = world.restart(noise), torch.zeros(len(noise))
    for _ in range(STEPS):
        state, outcome = world.step(state, follow_speaker(world.view(state).obs, variant), None)
        earned += outcome.reward[:, 0]
    return earned


def search(world: SimpleSpeakerListener, noise: Tensor, variant: Variant, width: int) -> Tensor:
    """What an agent earns in these episodes [B] by the best moves that the search finds."""
    state = world.restart(noise)
    said = world.view(state).obs["speaker"].argmax(-1, keepdim=True)
    state, outcome = world.step(state, follow_speaker(world.view(state).obs, variant), None)
    earned, kept = outcome.reward[:, :1], 1
    for _ in range(STEPS - 1):
        state = {name: x.repeat_interleave(MOVES, 0) for name, x in state.items()}
        move = torch.arange(MOVES).repeat(len(noise) * kept).view(-1, 1, 1)
        speech = said.repeat_interleave(kept * MOVES, 0)
        state, outcome = world.step(state, {"speaker": Action(speech), "listener": Action(move)}, None)
        earned = earned.repeat_interleave(MOVES, 1) + outcome.reward[:, 0].view(len(noise), -1)
        kept = min(width, kept * MOVES)
        best = (earned - _left(world, state, said, len(noise))).topk(kept, 1).indices
        earned = earned.gather(1, best)
        rows = (best + torch.arange(len(noise)).unsqueeze(1) * (len(move) // len(noise))).flatten()
        state = {name: x[rows] for name, x in state.items()}
    return earned.amax(1)


def _left(world: SimpleSpeakerListener, state: Beginnings, said: Tensor, episodes: int) -> Tensor:
    """A guess of what beginnings [B, W] will still pay: where the listener would roll to, squared, some times over."""
    seen = world.view(state).obs["listener"][:, 0]
    vel, landmarks = seen[:, :2], seen[:, 2:8].view(-1, 3, 2)
    goal = landmarks.gather(1, said[:, 0].repeat_interleave(len(seen) // episodes, 0).view(-1, 1, 1).expand(-1, 1, 2))
    return 3 * (goal[:, 0] - 0.15 * vel).square().sum(-1).view(episodes, -1)


if __name__ == "__main__":
    main()
