"""ICM, the intrinsic curiosity module: a team is rewarded for steps whose outcome it cannot tell.

An encoder makes features of observations. From the features of two rows the inverse model tells what was done between
them; from those of a row and what is done in it the forward model tells those of the next, and its error is the reward.
Features that no action changes help neither model, so that noise nobody has a hand in is not rewarded for long.

Source: Pathak et al. 2017.
Differs: nothing is rewarded before the first update, when all errors are chance; a reward is at most 1 / strength, so
that weighted it is at most 1.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from coterie.algos.optimiser import Optimiser
from coterie.math.curiosity import action_error, curiosity_reward, squared_error
from coterie.math.losses import masked_mean
from coterie.metrics import Metric, declare
from coterie.nets.joint import action_size, encoded
from coterie.nets.scaling import ObservationScale
from coterie.nets.team import Block, Core, Shape, TeamNet, blocks, join
from coterie.rewards.config import IcmConfig
from coterie.rewards.scale import RewardScale
from coterie.rewards.signal import OBS_CLIP, RewardSignal, batches, require_alike, reward_metrics, reward_of, seen
from coterie.seeds import generator
from coterie.types import Action, TeamSpec, Tree, Window, tree_map

declare(
    *reward_metrics("icm", "curiosity (ICM)"),
    Metric("loss/icm_forward", "", "half the squared error of the forward model's features", "down", "mean"),
    Metric("loss/icm_inverse", "nat", "how badly the inverse model tells what was done", "down", "mean"),
)


class _Models(nn.Module):
    """Encoder, inverse and forward model of every block of agents."""

    def __init__(self, team: TeamSpec, config: IcmConfig, draw: torch.Generator):
        super().__init__()
        self.blocks = blocks(team, config.share)
        shape = Shape(config.hidden, config.activation, False, "none", 1)
        width = config.features
        self.encoder = TeamNet(team, {b.name: width for b in self.blocks}, 1.0, shape, config.share, False, draw)

        def heads(extra: int, outputs: dict[str, int]) -> nn.ModuleDict:
            made = {}
            for block in self.blocks:
                inputs = width + (extra or action_size(block.roles[0].action))
                sets = block.n if config.share == "none" else None
                made[block.name] = Core(inputs, outputs[block.name], 1.0, shape, sets, draw)
            return nn.ModuleDict(made)

        self.inverse = heads(width, {b.name: action_size(b.roles[0].action) for b in self.blocks})
        self.forth = heads(0, {b.name: width for b in self.blocks})

    def encode(self, obs: dict[str, Tree]) -> dict[str, Tensor]:
        """Features [.., n, F] by block."""
        return self.encoder(obs, None, {})[0]

    def ahead(self, block: Block, features: Tensor, action: Action) -> Tensor:
        """The features that follow as the forward model tells them [.., n, F]."""
        done = encoded(block.roles[0].action, action)
        return self.forth[block.name](torch.cat([features, done], -1), None, {})[0]

    def done(self, block: Block, features: Tensor, following: Tensor) -> Tensor:
        """What was done as the inverse model tells it [.., n, sum A + C]."""
        return self.inverse[block.name](torch.cat([features, following], -1), None, {})[0]


class Icm(RewardSignal):
    """See the module."""

    Config: ClassVar = IcmConfig

    def __init__(self, team: TeamSpec, config: IcmConfig, copies: int, seed: int, device: torch.device) -> None:
        require_alike("icm", team, config.share)
        self.config = config
        self.models = _Models(team, config, generator(seed, "weights")).to(device)
        self._optimiser = Optimiser({"icm": self.models}, 1e-8, 0.0, config.max_grad_norm)
        self._shuffle = generator(seed, "minibatches")
        self._obs_scale = ObservationScale(self.models.blocks, config.normalise_obs, device, OBS_CLIP)
        self._scale = RewardScale(config.normalise, copies, team.n, config.gamma or 0.99, device)
        self._updates = 0
        self._raw = torch.zeros(())  # rewards of the present window before they are scaled

    def reward(self, window: Window) -> Tensor:
        obs = self._obs_scale(window.obs)
        with torch.no_grad():
            features = self.models.encode(obs)
            errors = {}
            for block in self.models.blocks:
                now, following = features[block.name][:-1], features[block.name][1:]
                errors[block.name] = squared_error(
                    self.models.ahead(block, now, block.action(window.action)), following
                )
            error = join(errors, self.models.blocks, -1)
        live = seen(window)
        self._raw = torch.where(live, error, 0.0)
        scaled = curiosity_reward(self._scale(self._raw), self.config.eta, self.config.strength)
        return reward_of(scaled, live, self._updates)

    def update(self, window: Window) -> dict[str, float]:
        config, live = self.config, seen(window)
        obs = tree_map(lambda x: x.flatten(0, 1), self._obs_scale(window.obs))
        action = tree_map(lambda x: x.flatten(0, 1), window.action)
        masks = {name: x[:-1].flatten(0, 1) for name, x in window.action_mask.items()}
        counts, copies, reports = live.flatten(0, 1), window.copies, []
        for rows in batches(live, config.epochs, config.minibatches, self._shuffle):
            one, two, done, open_ = (
                tree_map(lambda x, at=at: x.index_select(0, at), tree)
                for tree, at in ((obs, rows), (obs, rows + copies), (action, rows), (masks, rows))
            )
            forward, inverse = self._errors(one, two, done, open_)
            counted = counts[rows]
            losses = torch.stack([masked_mean(forward, counted), masked_mean(inverse, counted)])
            loss = config.beta * losses[0] + (1 - config.beta) * losses[1]
            self._optimiser.step(loss, {"icm": config.lr})
            reports.append(losses.detach())
        self._obs_scale.observe(tree_map(lambda x: x[:-1], window.obs), live)
        self._scale.observe(self._raw, live)
        self._updates += 1
        forward, inverse = torch.stack(reports).mean(0).tolist() if reports else (0.0, 0.0)
        return {"loss/icm_forward": forward, "loss/icm_inverse": inverse}

    def _errors(
        self, one: dict[str, Tree], two: dict[str, Tree], action: dict[str, Action], mask: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Errors of the forward and the inverse model [M, N] between rows `one` and those that followed them."""
        features, following = self.models.encode(one), self.models.encode(two)
        forward, inverse = {}, {}
        for block in self.models.blocks:
            now, then, done = features[block.name], following[block.name], block.action(action)
            forward[block.name] = squared_error(self.models.ahead(block, now, done), then)
            told = self.models.done(block, now, then)
            inverse[block.name] = action_error(block.roles[0].action, told, block.mask(mask), done)
        return join(forward, self.models.blocks, -1), join(inverse, self.models.blocks, -1)

    def state_dict(self) -> dict[str, Any]:
        return {
            "models": self.models.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "shuffle": self._shuffle.get_state(),
            "observations": self._obs_scale.state_dict(),
            "scale": self._scale.state_dict(),
            "updates": self._updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.models.load_state_dict(state["models"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._shuffle.set_state(state["shuffle"].cpu())
        self._obs_scale.load_state_dict(state["observations"])
        self._scale.load_state_dict(state["scale"])
        self._updates = state["updates"]
