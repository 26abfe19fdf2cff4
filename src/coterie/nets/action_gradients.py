"""Gradients of each agent's Q in its own action, which deterministic actors ascend.

The functions have the arguments of `coterie.nets.action_critics.replayed_actions_gradient`, the default of MADDPG.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.core.tree import Tree
from coterie.nets.action_critics import replayed_actions_gradient
from coterie.nets.joint_actions import JointAction


def own_action_gradient(
    critic: Any, features: Tree, action: Tensor, taken: Tensor, valid: Tensor, *, joint: JointAction
) -> tuple[Tensor, Tensor]:
    """Gradient for critics that read an agent's own observation and action."""
    action = action.requires_grad_()
    q = torch.where(valid, critic.q_values(features, joint.split(action))[..., 0], 0.0).sum()
    return torch.autograd.grad(q, action)[0], q.detach()


def current_actions_gradient(
    critic: Any, features: Tree, action: Tensor, taken: Tensor, valid: Tensor, *, joint: JointAction
) -> tuple[Tensor, Tensor]:
    """Gradient for centralized critics, with the other agents' actions from their current actors."""
    if critic.per_agent_network:
        return replayed_actions_gradient(critic, features, action, action, valid=valid, joint=joint)
    action = action.requires_grad_()
    q = critic.q_values(features, action)[..., 0]  # one forward pass, as all agents evaluate the same joint action
    if critic.shared_output:  # and one backward pass, as all have the same Q
        (gradient,) = torch.autograd.grad(q[..., 0].sum(), action)
        return joint.mask_team(gradient, valid), torch.where(valid, q.detach(), 0.0).sum()
    q = torch.where(valid, q, 0.0).sum((0, 1))
    gradient, agents = torch.zeros_like(action), len(q)
    for agent in range(agents):
        (found,) = torch.autograd.grad(q[agent], action, retain_graph=agent + 1 < agents)
        gradient += torch.where(joint.is_own[agent], found, 0.0)
    return gradient, q.detach().sum()


def select_action_gradient(
    centralized: bool, other_actions: Literal["replay", "current"]
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Returns the gradient function for a kind of critic and for the origin of the other agents' actions."""
    if not centralized:
        return own_action_gradient
    return replayed_actions_gradient if other_actions == "replay" else current_actions_gradient
