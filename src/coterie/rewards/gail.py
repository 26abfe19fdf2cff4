"""GAIL, generative adversarial imitation learning: a team is rewarded for acting as in demonstrations.

A discriminator learns to tell demonstrated pairs of observation and action from the team's own; the reward of a step is
how demonstrated it looks.

Sources: Ho and Ermon 2016; Gulrajani et al. 2017 for the gradient penalty, as in Kostrikov et al. 2019.
Differs: D is the probability of a demonstration, and the reward of three forms (`reward`); nothing is rewarded before
the first update.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from coterie.algos.onpolicy import live
from coterie.algos.optimiser import Optimiser
from coterie.errors import UserError
from coterie.imitation.batches import DemoBatches, demos_for
from coterie.math.imitation import (
    bounded_reward,
    discriminator_loss,
    gradient_penalty,
    negative_reward,
    positive_reward,
)
from coterie.math.losses import masked_mean
from coterie.metrics import Metric, declare
from coterie.nets.joint import action_size, encoded
from coterie.nets.scaling import ObservationScale
from coterie.nets.team import Core, Shape, blocks, join
from coterie.rewards.config import GailConfig
from coterie.rewards.scale import RewardScale
from coterie.rewards.signal import OBS_CLIP, RewardSignal, batches, require_alike, reward_metrics, reward_of
from coterie.seeds import generator
from coterie.types import Action, TeamSpec, Tree, Window, tree_map

declare(
    *reward_metrics("gail", "likeness to demonstrations (GAIL)"),
    Metric("loss/gail", "nat", "cross-entropy of telling demonstrations from play, with its penalty", None, "mean"),
    Metric("gail/demonstrated", "share", "probability of being demonstrated, of what was demonstrated", None, "mean"),
    Metric("gail/played", "share", "probability of being demonstrated, of what was played", "up", "mean"),
)

_REWARDS = {"positive": positive_reward, "negative": negative_reward, "bounded": bounded_reward}


class Gail(RewardSignal):
    """See the module."""

    Config: ClassVar = GailConfig

    def __init__(self, team: TeamSpec, config: GailConfig, copies: int, seed: int, device: torch.device) -> None:
        """UserError without demonstrations, for those of other spaces, and for observations that are no vector."""
        require_alike("gail", team, config.share)
        _require_vectors(team)
        if config.demos is None:
            raise UserError("rewards.gail has no demonstrations: give rewards.gail.demos=FILE (coterie record)")
        self.config, self.blocks = config, blocks(team, config.share)
        demos = demos_for(config.demos, "rewards.gail.demos", None, team)
        self._digest = demos.digest
        self._demos = DemoBatches(demos, team, False, 1, seed, device)
        self.nets = self._build(generator(seed, "weights")).to(device)
        self._optimiser = Optimiser({"gail": self.nets}, 1e-8, 0.0, config.max_grad_norm)
        self._shuffle = generator(seed, "minibatches")
        self._between = generator(seed, "penalty", device=device)
        self._obs_scale = ObservationScale(self.blocks, config.normalise_obs, device, OBS_CLIP)
        self._obs_scale.observe(self._demos.obs, self._demos.live)
        self._scale = RewardScale(config.normalise, copies, team.n, config.gamma or 0.99, device)
        self._updates = 0
        self._raw = torch.zeros(())  # rewards of the present window before they are scaled

    def _build(self, draw: torch.Generator) -> nn.ModuleDict:
        config = self.config
        shape = Shape(config.hidden, config.activation, False, "none", 1)
        nets = {}
        for block in self.blocks:
            inputs = block.features + (action_size(block.roles[0].action) if config.actions else 0)
            nets[block.name] = Core(inputs, 1, 1.0, shape, block.n if config.share == "none" else None, draw)
        return nn.ModuleDict(nets)

    def reward(self, window: Window) -> Tensor:
        there = live(window)
        with torch.no_grad():
            read = self._inputs(tree_map(lambda x: x[:-1], window.obs), window.action)
            self._raw = torch.where(there, _REWARDS[self.config.reward](self._logits(read)), 0.0)
        return reward_of(self._scale(self._raw), there, self._updates)

    def update(self, window: Window) -> dict[str, float]:
        config, there = self.config, live(window)
        obs = tree_map(lambda x: x[:-1], window.obs)
        read = tree_map(lambda x: x.flatten(0, 1), self._inputs(obs, window.action))
        counts, reports = there.flatten(0, 1), []
        for rows in batches(there, config.epochs, config.minibatches, self._shuffle):
            played = tree_map(lambda x, rows=rows: x.index_select(0, rows), read)
            loss, report = self._loss(played, counts[rows])
            self._optimiser.step(loss, {"gail": config.lr})
            reports.append(torch.cat([loss.detach().view(1), report]))
        self._obs_scale.observe(obs, there)
        self._scale.observe(self._raw, there)
        self._updates += 1
        found = torch.stack(reports).mean(0).tolist() if reports else [0.0, 0.0, 0.0]
        return dict(zip(("loss/gail", "gail/demonstrated", "gail/played"), found, strict=True))

    def _loss(self, played: dict[str, Tensor], there: Tensor) -> tuple[Tensor, Tensor]:
        """The discriminator's loss on rows of play [M, n, D] by block and as many demonstrated ones, and [2] what it
        takes each for on average; there: [M, N], whose play counts.
        """
        shown = self._demos.draw(len(there))
        right = {name: x[0] for name, x in self._inputs(shown.obs, shown.action).items()}
        right_there = shown.live[0]
        logit, other = self._logits(right), self._logits(played)
        cost, other_cost = discriminator_loss(logit, other)
        loss = masked_mean(cost, right_there) + masked_mean(other_cost, there)
        if self.config.penalty:
            slopes = self._slopes(right, played)
            loss = loss + self.config.penalty * masked_mean(gradient_penalty(slopes), right_there & there)
        with torch.no_grad():
            taken = [masked_mean(torch.sigmoid(logit), right_there), masked_mean(torch.sigmoid(other), there)]
        return loss, torch.stack(taken)

    def _slopes(self, right: dict[str, Tensor], played: dict[str, Tensor]) -> Tensor:
        """The discriminator's slopes [M, N, widest D] somewhere between demonstrations and play."""
        between = {}
        for name, x in right.items():
            share = torch.rand((*x.shape[:-1], 1), generator=self._between, device=x.device)
            between[name] = (share * x + (1 - share) * played[name]).requires_grad_()
        logits = self._logits(between).sum()
        found = torch.autograd.grad(logits, list(between.values()), create_graph=True)
        width = max(x.shape[-1] for x in found)
        slopes = {name: nn.functional.pad(x, (0, width - x.shape[-1])) for name, x in zip(between, found, strict=True)}
        return join(slopes, self.blocks, -2)

    def _inputs(self, obs: dict[str, Tree], action: dict[str, Action]) -> dict[str, Tensor]:
        """What the discriminator reads of rows, by block [.., n, D]."""
        scaled, found = self._obs_scale(obs), {}
        for block in self.blocks:
            seen = block.gather(scaled).float()
            done = encoded(block.roles[0].action, block.action(action)) if self.config.actions else None
            found[block.name] = seen if done is None else torch.cat([seen, done.clamp(-1, 1)], -1)
        return found

    def _logits(self, read: dict[str, Tensor]) -> Tensor:
        """Logits of being demonstrated [.., N]."""
        return join(
            {b.name: self.nets[b.name](read[b.name], None, {})[0][..., 0] for b in self.blocks}, self.blocks, -1
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "nets": self.nets.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "demos": self._demos.state_dict(),
            "digest": self._digest,
            "shuffle": self._shuffle.get_state(),
            "between": self._between.get_state(),
            "observations": self._obs_scale.state_dict(),
            "scale": self._scale.state_dict(),
            "updates": self._updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """UserError if the demonstrations are not those that the run was started with."""
        if state["digest"] != self._digest:
            raise UserError(
                f"the demonstrations {self.config.demos} have changed since the run was started: put back the ones "
                "that it was started with"
            )
        self.nets.load_state_dict(state["nets"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._demos.load_state_dict(state["demos"])
        self._shuffle.set_state(state["shuffle"].cpu())
        self._between.set_state(state["between"].cpu())
        self._obs_scale.load_state_dict(state["observations"])
        self._scale.load_state_dict(state["scale"])
        self._updates = state["updates"]


def _require_vectors(team: TeamSpec) -> None:
    for role in team.roles:
        if len(role.observation_space.shape or ()) != 1:
            raise UserError(
                f"rewards.gail reads vectors, and role '{role.name}' observes {role.observation_space}: flatten the "
                "observation to one axis, or imitate with imitation.demos"
            )
