"""Machine yardstick: IPPO on simple_spread in bare PyTorch, without roles, teams, masks or per-environment resets.

128 environments x 128 steps, two tanh networks of 64-64 units, 4 epochs x 4 minibatches, one process: the same work as
`algo=ippo/yardstick`. It imports nothing of Coterie, so the figure depends on the machine and PyTorch only.

    python benchmarks/yardstick.py [SECONDS] [--json] [--cuda NUM_ENVS]

prints steps per second; with --json also the milliseconds per iteration of collection and update. With --cuda it runs
on a GPU, with another number of environments.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NUM_ENVS, STEPS, AGENTS, LIMIT = 128, 128, 3, 25
EPOCHS, MINIBATCHES = 4, 4
GAMMA, TRACE, CLIP, ENTROPY, VALUE, MAX_NORM = 0.99, 0.95, 0.2, 0.01, 0.5, 0.5
WARM_UP = 2

# Force of each action: none, left, right, down, up.
FORCE = 5.0 * torch.tensor([[0.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])
OTHERS = torch.tensor([[j for j in range(AGENTS) if j != i] for i in range(AGENTS)])


def restart() -> tuple[Tensor, Tensor, Tensor]:
    """Positions, velocities [B, N, 2] and landmarks [B, N, 2] of a new episode."""
    places = torch.rand(2, NUM_ENVS, AGENTS, 2) * 2 - 1
    return places[0], torch.zeros(NUM_ENVS, AGENTS, 2), places[1]


def observe(pos: Tensor, vel: Tensor, landmarks: Tensor) -> Tensor:
    """Observations [B, N, 18]: velocity, position, offsets to landmarks and other agents, zeros for communication."""
    to_landmarks = (landmarks.unsqueeze(1) - pos.unsqueeze(2)).flatten(2)
    to_others = (pos[:, OTHERS] - pos.unsqueeze(2)).flatten(2)
    return torch.cat((vel, pos, to_landmarks, to_others, pos.new_zeros(NUM_ENVS, AGENTS, 4)), dim=2)


def move(pos: Tensor, vel: Tensor, landmarks: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, velocities and rewards [B, N] after a step of 0.1 s with damping 0.25 and soft contacts."""
    apart = pos.unsqueeze(2) - pos.unsqueeze(1)
    distance = apart.square().sum(3).add(1e-12).sqrt()
    overlap = F.softplus((0.3 - distance) / 1e-3) * 1e-3
    contact = (apart * (100 * overlap / distance).unsqueeze(3)).sum(2)
    vel = 0.75 * vel + 0.1 * (FORCE[action] + contact)
    pos = pos + 0.1 * vel
    uncovered = (pos.unsqueeze(2) - landmarks.unsqueeze(1)).square().sum(3).sqrt().amin(1).sum(1, keepdim=True)
    touching = (pos.unsqueeze(2) - pos.unsqueeze(1)).square().sum(3) < 0.3**2
    return pos, vel, -0.5 * uncovered - 0.5 * (touching.sum(2) - 1)


def network(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(18, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


class Yardstick:
    """The training loop: `collect` and `update` alternate."""

    def __init__(self) -> None:
        self.actor, self.critic = network(5), network(1)
        self.params = [*self.actor.parameters(), *self.critic.parameters()]
        self.adam = torch.optim.Adam(self.params, lr=2.5e-4, eps=1e-5, fused=True)
        self.world, self.age = restart(), 0

    @torch.inference_mode()
    def collect(self) -> list[Tensor]:
        """Samples [T B N, ..]: observation, action, log-probability, advantage, return and value."""
        obs = torch.empty(STEPS + 1, NUM_ENVS, AGENTS, 18)
        action = torch.empty(STEPS, NUM_ENVS, AGENTS, dtype=torch.int64)
        log_prob, reward = torch.empty(2, STEPS, NUM_ENVS, AGENTS).unbind(0)
        dones = []
        for t in range(STEPS):
            obs[t] = observe(*self.world)
            log_p = self.actor(obs[t]).log_softmax(2)
            action[t] = (log_p - torch.empty_like(log_p).exponential_().log()).argmax(2)
            log_prob[t] = log_p.gather(2, action[t].unsqueeze(2)).squeeze(2)
            pos, vel, reward[t] = move(*self.world, action[t])
            self.age += 1
            dones.append(self.age == LIMIT)
            self.world = (pos, vel, self.world[2])
            if dones[-1]:
                self.world, self.age = restart(), 0
        obs[STEPS] = observe(*self.world)
        value = self.critic(obs).squeeze(3)
        advantage, trace = torch.empty_like(reward), torch.zeros(NUM_ENVS, AGENTS)
        for t in range(STEPS - 1, -1, -1):
            discount = 0.0 if dones[t] else GAMMA
            trace = reward[t] + discount * value[t + 1] - value[t] + discount * TRACE * trace
            advantage[t] = trace
        samples = (obs[:-1], action, log_prob, advantage, advantage + value[:-1], value[:-1])
        return [x.flatten(0, 2) for x in samples]

    def update(self, samples: list[Tensor]) -> None:
        # Inference-mode tensors cannot be saved for backward; index_select outside of it creates ordinary ones.
        for _ in range(EPOCHS):
            for part in torch.randperm(STEPS * NUM_ENVS * AGENTS).chunk(MINIBATCHES):
                self.adam.zero_grad()
                self.loss(*(x.index_select(0, part) for x in samples)).backward()
                nn.utils.clip_grad_norm_(self.params, MAX_NORM)
                self.adam.step()

    def loss(
        self, obs: Tensor, action: Tensor, old_log_prob: Tensor, advantage: Tensor, target: Tensor, old_value: Tensor
    ) -> Tensor:
        log_p = self.actor(obs).log_softmax(1)
        ratio = (log_p.gather(1, action.unsqueeze(1)).squeeze(1) - old_log_prob).exp()
        normalized = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy = torch.minimum(ratio * normalized, ratio.clamp(1 - CLIP, 1 + CLIP) * normalized).mean()
        value = self.critic(obs).squeeze(1)
        clipped = old_value + (value - old_value).clamp(-CLIP, CLIP)
        error = torch.maximum((value - target).square(), (clipped - target).square()).mean()
        entropy = -(log_p.exp() * log_p).sum(1).mean()
        return 0.5 * VALUE * error - policy - ENTROPY * entropy


def measure(seconds: float) -> dict[str, float]:
    """Trains for `seconds` after a warm-up and returns the speed."""
    torch.manual_seed(0)
    wait = torch.cuda.synchronize if FORCE.is_cuda else lambda: None
    training = Yardstick()
    times: list[tuple[float, float]] = []
    started = time.perf_counter()
    while len(times) <= WARM_UP or time.perf_counter() - started < seconds:
        if len(times) == WARM_UP:
            started = time.perf_counter()
        start = time.perf_counter()
        samples = training.collect()
        wait()
        collected = time.perf_counter()
        training.update(samples)
        wait()
        times.append((collected - start, time.perf_counter() - collected))
    times = times[WARM_UP:]
    whole = sorted(collect + update for collect, update in times)
    quiet = len(times) // 4
    return {
        "steps_per_s": NUM_ENVS * STEPS * len(times) / sum(whole),
        "steps_per_s_quiet": NUM_ENVS * STEPS / whole[quiet],
        "collect_ms": 1000 * sorted(collect for collect, _ in times)[quiet],
        "update_ms": 1000 * sorted(update for _, update in times)[quiet],
    }


if __name__ == "__main__":
    arguments = [word for word in sys.argv[1:] if word != "--json"]
    if "--cuda" in arguments:
        place = arguments.index("--cuda")
        NUM_ENVS = int(arguments[place + 1])
        del arguments[place : place + 2]
        torch.set_default_device("cuda")
        FORCE, OTHERS = FORCE.cuda(), OTHERS.cuda()
    result = measure(float(arguments[0]) if arguments else 10.0)
    print(json.dumps(result) if "--json" in sys.argv else int(result["steps_per_s"]))
