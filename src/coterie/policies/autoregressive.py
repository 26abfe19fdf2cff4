"""A policy by which the agents of a team decide one after another, each by what those before it chose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import Action, HiddenState, Rollout, Timestep
from coterie.functional.policy_gradient import choice_log_probs, sample_action
from coterie.kernels import switch
from coterie.nets.autoregressive import AutoregressiveActor, draw_places, in_order, order_of
from coterie.nets.config import NetworkConfig
from coterie.nets.squashed_actions import draw_block_noise
from coterie.nets.team import join_blocks
from coterie.nets.team_view import VIEW
from coterie.policies.base import ActionDistribution, Mode
from coterie.policies.network_policy import CloningOptions, DemonstrationBatch, NetworkPolicy, by_timestep
from coterie.policies.stochastic import imitation_loss

AgentOrderKind = Literal["fixed", "random"]

PLACE = "place"
"""Extra of random orders [B, N] int64: the place of each agent in the order in which agents decided."""
_PLACE = "\0place"
"""Key of the places in noise. No block has this name."""


class Decision(NamedTuple):
    """The decision of the agent at a place.

    Attributes:
        params, log_std: Its distribution [B, sum A + C] and [B or 1, C], see `ActionParameters.params`.
        mask: [B, sum A] bool; None: all choices are available.
        action: Its action [B, ..].
        log_prob: [B].
    """

    params: Tensor
    log_std: Tensor | None
    mask: Tensor | None
    action: Action
    log_prob: Tensor


class AutoregressivePolicy(NetworkPolicy):
    """A stochastic policy whose agents decide one after another. It needs the observations of the whole team.

    Args:
        team: The team.
        config: Architecture and inputs; `config.view` must not be `none`.
        actor: Its network.
        device: Where the network is stored.
        order: `fixed`: agents decide in the team's order; `random`: in a new order for each rollout, which is stored in
            the extra `PLACE`. Greedy actions are always chosen in the team's order.
    """

    cuda_graphs = True
    cloning_options = ("fit_std",)
    hidden_layers = False

    def __init__(
        self,
        team: TeamSpec,
        config: NetworkConfig,
        actor: AutoregressiveActor,
        device: torch.device,
        *,
        order: AgentOrderKind = "fixed",
    ):
        self.actor, self._order = actor, order
        # It has the two parts of a `TeamNetwork` that the base class reads: blocks and the initial hidden state.
        super().__init__(team, config, cast(Any, actor), device)
        self.communicates = True
        actor.agents_can_die = team.agents_can_die

    # ------------------------------------------------------------------------------------------------------- acting

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tree]:
        noise = draw_block_noise(self.blocks, (steps, num_envs), generator, self.device)
        if self._order == "random":
            noise[_PLACE] = draw_places(self.blocks, generator, self.device).expand(steps, num_envs, -1)
        return by_timestep(noise)

    def act(
        self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], HiddenState, dict[str, Tensor]]:
        place = None if mode == "greedy" else noise.get(_PLACE)
        order = order_of(place)
        decided, hidden_state = self._decide(timestep, hidden_state, place, None if mode == "greedy" else noise)
        actions, log_probs = {}, {}
        for block, decisions in zip(self.blocks, decided, strict=True):
            action = _stacked([decision.action for decision in decisions])
            log_prob = torch.stack([decision.log_prob for decision in decisions], -1)
            if order is not None:
                action = Action(*(x if x is None else order.restore(x, block) for x in vars(action).values()))
                log_prob = order.restore(log_prob.unsqueeze(-1), block).squeeze(-1)
            log_probs[block.name] = log_prob
            actions.update(block.split_by_role(action))
        extras = {"log_prob": join_blocks(log_probs, self.blocks, -1)}
        return actions, hidden_state, extras if place is None else extras | {PLACE: place}

    def action_distribution(
        self, timestep: Timestep, hidden_state: HiddenState, mode: Mode
    ) -> dict[str, ActionDistribution]:
        """Returns the distributions by role in the team's order, given the most likely actions of those before."""
        distributions: dict[str, ActionDistribution] = {}
        decided, _ = self._decide(timestep, hidden_state, None, None)
        for block, decisions in zip(self.blocks, decided, strict=True):
            spec = block.action_spec
            params = torch.stack([decision.params for decision in decisions], -2)
            masks = [decision.mask for decision in decisions]
            mask = None if masks[0] is None else torch.stack(cast(list[Tensor], masks), -2)
            mean, log_std = params[..., spec.mask_size :], decisions[0].log_std
            if log_std is not None:
                log_std = torch.stack([cast(Tensor, decision.log_std) for decision in decisions], -2)
            distribution = ActionDistribution(
                choice_log_probs(spec, params, mask).exp() if spec.choices else None,
                mean=mean if spec.continuous else None,
                std=None if log_std is None else log_std.exp().expand_as(mean),
            )
            distributions |= block.split_by_role(distribution)
        return distributions

    def _decide(
        self, timestep: Timestep, hidden_state: HiddenState, place: Tensor | None, noise: Tree | None
    ) -> tuple[list[list[Decision]], HiddenState]:
        """Returns the decisions of each block's agents in order, and the next hidden state.

        It is a loop over agents, since each reads the actions of those before. Without noise they are greedy.
        """
        actor, order = self.actor, order_of(place)
        obs = with_places(self.obs_normalizer(timestep.obs, timestep.alive), place)
        decoding = actor.start(obs, timestep.first, hidden_state)
        alive = in_order(timestep.alive, order).unsqueeze(-1) if self.team.agents_can_die else None
        token = actor.tokens.start.expand(timestep.alive.shape[0], -1)
        decided: list[list[Decision]] = []
        for block in self.blocks:
            masks = block.join_masks(timestep.action_mask)
            masks = masks if masks is None or order is None else order.arrange(masks, block)
            decisions: list[Decision] = []
            for i in range(block.n):
                features = actor.step(decoding, block.start + i, token)
                params, log_std = actor.params(block, actor.heads[block.name](features))
                mask = None if masks is None else masks[:, i]
                action, log_prob = sample_action(
                    block.action_spec,
                    params,
                    log_std=log_std,
                    mask=mask,
                    noise=None if noise is None else noise[block.name][:, i],
                    kernels=switch.on,
                )
                decisions.append(Decision(params, log_std, mask, action, log_prob))
                if block.start + i + 1 < self.team.n:
                    chosen = actor.tokens.of_block(block, action)
                    token = chosen if alive is None else torch.where(alive[:, block.start + i], chosen, token)
            decided.append(decisions)
        return decided, actor.finish(decoding)

    # ----------------------------------------------------------------------------------------------------- learning

    def obs_of_rollout(self, rollout: Rollout) -> dict[str, Tree]:
        """Returns the observations of a rollout [T + 1, B, n, ..] as the network reads them, with the agents' order."""
        obs, place = self.obs_normalizer.of_rollout(rollout), rollout.extras.get(PLACE)
        return with_places(obs, None if place is None else torch.cat([place, place[-1:]]))

    def unroll(
        self, obs: dict[str, Tree], first: Tensor, hidden_state: HiddenState, action: dict[str, Action]
    ) -> HiddenState:
        """Returns the network's hidden state after sequences of observations [L, M, n, ..] as it reads them."""
        return self.actor.unroll(obs, action, first, hidden_state)

    def cloning_loss(self, batch: DemonstrationBatch, options: CloningOptions) -> tuple[Tensor, Tensor]:
        obs = self.obs_normalizer(batch.obs, batch.valid)
        first, hidden_state = None, self.initial_hidden_state(batch.valid.shape[1])
        if hidden_state:
            first = batch.first
        params = self.actor.agent_params(self.actor.features(obs, batch.action, first, hidden_state), None)
        losses, matches = {}, {}
        for block in self.blocks:
            losses[block.name], matches[block.name] = imitation_loss(block, *params[block.name], batch, options)
        return join_blocks(losses, self.blocks, -1), join_blocks(matches, self.blocks, -1)


def with_places(obs: dict[str, Tree], place: Tensor | None) -> dict[str, Tree]:
    """Returns observations as networks read them with the agents' places [.., N]; None: the team's order."""
    return obs if place is None else obs | {VIEW: replace(obs[VIEW], place=place)}


def _stacked(actions: list[Action]) -> Action:
    """Joins the actions [B, ..] of agents to [B, n, ..]."""
    parts = ([getattr(action, name) for action in actions] for name in ("discrete", "continuous"))
    return Action(*(None if part[0] is None else torch.stack(part, 1) for part in parts))
