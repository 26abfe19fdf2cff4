"""RND, random network distillation: a team is rewarded for what it has seldom seen.

A network with fixed random weights makes features of an observation, and another learns to tell them; where that errs,
few observations like this one were learned from. The reward is the mean squared error on the row that a step led to.

Source: Burda et al. 2018.
Differs: statistics of observations and rewards change at the end of an update only, and nothing is rewarded before the
first, which stands for the source's steps at random.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.algos.optimiser import Optimiser
from coterie.math.losses import masked_mean
from coterie.metrics import Metric, declare
from coterie.nets.scaling import ObservationScale
from coterie.nets.team import Shape, TeamNet, join
from coterie.rewards.config import RndConfig
from coterie.rewards.scale import RewardScale
from coterie.rewards.signal import OBS_CLIP, RewardSignal, batches, require_alike, reward_metrics, reward_of, seen
from coterie.seeds import generator
from coterie.types import TeamSpec, Tree, Window, tree_map

declare(
    *reward_metrics("rnd", "novelty (RND)"),
    Metric("loss/rnd", "", "mean squared error of what the predictor tells of the random network", "down", "mean"),
)


class Rnd(RewardSignal):
    """See the module."""

    Config: ClassVar = RndConfig

    def __init__(self, team: TeamSpec, config: RndConfig, copies: int, seed: int, device: torch.device) -> None:
        require_alike("rnd", team, config.share)
        self.config = config
        self.target = self._net(team, config.hidden, generator(seed, "target")).to(device).requires_grad_(False)
        # One layer more than what it has to tell, as in the source.
        deeper = (*config.hidden, config.hidden[-1])
        self.predictor = self._net(team, deeper, generator(seed, "predictor")).to(device)
        self._optimiser = Optimiser({"rnd": self.predictor}, 1e-8, 0.0, config.max_grad_norm)
        self._shuffle = generator(seed, "minibatches")
        self._obs_scale = ObservationScale(self.target.blocks, config.normalise_obs, device, OBS_CLIP)
        self._scale = RewardScale(config.normalise, copies, team.n, config.gamma or 0.99, device)
        self._updates = 0
        self._raw = torch.zeros(())  # rewards of the present window before they are scaled

    def _net(self, team: TeamSpec, hidden: tuple[int, ...], draw: torch.Generator) -> TeamNet:
        config = self.config
        shape = Shape(hidden, config.activation, False, "none", 1)
        outputs = {role.name: config.features for role in team.roles}
        return TeamNet(team, outputs, 1.0, shape, config.share, False, draw)

    def reward(self, window: Window) -> Tensor:
        obs, live = self._obs_scale(tree_map(lambda x: x[1:], window.obs)), seen(window)
        with torch.no_grad():
            self._raw = torch.where(live, self._error(obs), 0.0)
        return reward_of(self._scale(self._raw), live, self._updates)

    def update(self, window: Window) -> dict[str, float]:
        config, live = self.config, seen(window)
        following = tree_map(lambda x: x[1:], window.obs)
        obs = tree_map(lambda x: x.flatten(0, 1), self._obs_scale(following))
        counts, reports = live.flatten(0, 1), []
        for rows in batches(live, config.epochs, config.minibatches, self._shuffle):
            error = self._error(tree_map(lambda x, rows=rows: x.index_select(0, rows), obs))
            loss = masked_mean(error, counts[rows])
            self._optimiser.step(loss, {"rnd": config.lr})
            reports.append(loss.detach())
        self._obs_scale.observe(following, live)
        self._scale.observe(self._raw, live)
        self._updates += 1
        return {"loss/rnd": float(torch.stack(reports).mean()) if reports else 0.0}

    def _error(self, obs: dict[str, Tree]) -> Tensor:
        """Mean squared errors of the predictor [.., N]."""
        told, right = self.predictor(obs, None, {})[0], self.target(obs, None, {})[0]
        order = self.target.blocks
        return join({b.name: (told[b.name] - right[b.name]).square().mean(-1) for b in order}, order, -1)

    def state_dict(self) -> dict[str, Any]:
        return {
            "target": self.target.state_dict(),
            "predictor": self.predictor.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "shuffle": self._shuffle.get_state(),
            "observations": self._obs_scale.state_dict(),
            "scale": self._scale.state_dict(),
            "updates": self._updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.target.load_state_dict(state["target"])
        self.predictor.load_state_dict(state["predictor"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._shuffle.set_state(state["shuffle"].cpu())
        self._obs_scale.load_state_dict(state["observations"])
        self._scale.load_state_dict(state["scale"])
        self._updates = state["updates"]
