"""The one place where a loss becomes a step: gradients, their norm, the clip, Adam."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


class Optimiser:
    """Adam over named modules, each with its own learning rate and its own clip of the gradient's norm.

    A module's parameters become views of one flat tensor, so that norm, clip and step are one operation each.
    """

    def __init__(self, modules: dict[str, nn.Module], eps: float, weight_decay: float, max_grad_norm: float | None):
        self._max_grad_norm = max_grad_norm
        self._flat: dict[str, Tensor] = {}
        for name, module in modules.items():
            parameters = list(module.parameters())
            flat = torch.cat([p.detach().reshape(-1) for p in parameters])
            flat.grad = torch.zeros_like(flat)
            at = 0
            for p in parameters:
                p.data = flat[at : at + p.numel()].view_as(p)
                p.grad = flat.grad[at : at + p.numel()].view_as(p)
                at += p.numel()
            self._flat[name] = flat
        groups = [{"params": [flat], "name": name} for name, flat in self._flat.items()]
        self._adam = torch.optim.Adam(groups, lr=0.0, eps=eps, weight_decay=weight_decay, fused=True)

    @property
    def names(self) -> tuple[str, ...]:
        """Its modules."""
        return tuple(self._flat)

    def beside(self, name: str) -> Optimiser:
        """Another one for one of the modules, with moments of its own and without weight decay."""
        other = copy.copy(self)
        other._flat = {name: self._flat[name]}
        groups = [{"params": [self._flat[name]], "name": name}]
        other._adam = torch.optim.Adam(groups, lr=0.0, eps=self._adam.defaults["eps"], fused=True)
        return other

    def step(self, loss: Tensor, lr: dict[str, float]) -> Tensor:
        """One step down the gradient of `loss`; returns the gradient norms before the clip, a module each."""
        for flat in self._flat.values():
            assert flat.grad is not None
            flat.grad.zero_()
        loss.backward()
        norms = []
        for flat in self._flat.values():
            assert flat.grad is not None
            norm = flat.grad.norm()
            if self._max_grad_norm is not None:
                flat.grad.mul_((self._max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
            norms.append(norm)
        for group in self._adam.param_groups:
            group["lr"] = lr[group["name"]]
        self._adam.step()
        return torch.stack(norms)

    def state_dict(self) -> dict[str, Any]:
        return {name: dict(self._adam.state.get(flat, {})) for name, flat in self._flat.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, flat in self._flat.items():
            if state[name]:
                self._adam.state[flat] = {key: value.to(flat.device, copy=True) for key, value in state[name].items()}
