"""Gradient steps: schedules, Adam and RAdam with gradient clipping, target networks, and the metrics of an update."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.adam import adam  # creating torch.optim.Adam imports torch._dynamo, which takes 2 s
from torch.optim.radam import radam

from coterie.core.device_constants import is_tracing
from coterie.core.errors import NonFiniteError
from coterie.kernels import switch
from coterie.kernels.adam import adam_step
from coterie.ranks.ranks import ONE, Ranks

Schedule = Literal["constant", "linear", "exponential"]
Rule = Literal["adam", "radam"]


def scheduled(schedule: Schedule, start: float, end: float, progress: float) -> float:
    """Returns the value of a schedule from `start` to `end` at a fraction `progress` of it, clipped to [0, 1].

    An exponential schedule is linear in the logarithm; it needs `start` and `end` above 0.
    """
    progress = min(max(progress, 0.0), 1.0)
    if schedule == "constant":
        return start
    if schedule == "linear":
        return start + (end - start) * progress
    return start * (end / start) ** progress


_BETAS = (0.9, 0.999)


class Optimizer:
    """Adam or RAdam over named modules, each with its own learning rate and gradient clipping.

    The parameters of a module become views of one tensor in `flat`, so that norm, clipping and step are one operation.
    Entries of gradients are clipped to `max_grad_value`, then gradients to the norm `max_grad_norm` per module; None
    disables either. On a GPU nothing is read by the host, and learning rates are tensors there, so that a captured step
    follows their schedules.

    Args:
        modules: The modules by name.
        eps: Added to the denominator of Adam.
        weight_decay: Weight of the squared norm of the parameters in the loss.
        max_grad_norm: See above.
        max_grad_value: See above.
        rule: `adam`, or `radam` for steps whose size is rectified while the second moments are uncertain.
        ranks: Ranks that train the modules together: gradients are averaged over them.
    """

    def __init__(
        self,
        modules: dict[str, nn.Module],
        eps: float,
        weight_decay: float,
        max_grad_norm: float | None,
        max_grad_value: float | None = None,
        rule: Rule = "adam",
        *,
        ranks: Ranks = ONE,
    ):
        self._eps, self._weight_decay, self._rule = eps, weight_decay, rule
        self._max_grad_norm, self._max_grad_value, self._ranks = max_grad_norm, max_grad_value, ranks
        self.flat: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}
        for name, module in modules.items():
            self.flat[name] = flat = _flattened(module)
            self._gradients[name] = gradient = torch.zeros_like(flat)
            start = 0
            for p in module.parameters():
                p.grad = gradient[start : start + p.numel()].view_as(p)
                start += p.numel()
        self._state: dict[str, dict[str, Tensor]] = {name: {} for name in self.flat}

    def for_module(self, *names: str, weight_decay: float = 0.0, ranks: Ranks = ONE) -> Optimizer:
        """Returns another optimizer for one or some of the modules, with moments of its own."""
        other = copy.copy(self)
        other.flat, other._gradients = ({name: x[name] for name in names} for x in (self.flat, self._gradients))
        other._state = {name: {} for name in names}
        other._weight_decay, other._ranks = weight_decay, ranks
        return other

    def step(self, loss: Tensor, lr: Mapping[str, float | Tensor]) -> Tensor:
        """Takes one gradient step.

        Args:
            loss: [].
            lr: Learning rate of each module; on a GPU numbers or tensors [] float32.

        Returns:
            Gradient norms before clipping [modules].
        """
        for gradient in self._gradients.values():
            gradient.zero_()
        loss.backward()
        if self._ranks.size > 1:
            self._average_gradients()
        norms = []
        for name, flat in self.flat.items():
            gradient, state = self._gradients[name], self._state[name]
            if not state:
                state |= _no_moments(flat)
            unclipped = None
            if self._max_grad_value is not None:
                unclipped = gradient.norm()
                gradient.clamp_(-self._max_grad_value, self._max_grad_value)
            rate = _rate(lr[name], flat)
            norm = self._kernel_step(flat, gradient, state, rate) if switch.on else None
            if norm is None:
                norm = gradient.norm()
                if self._max_grad_norm is not None:
                    gradient.mul_((self._max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
                self._torch_step(flat, gradient, state, rate)
            norms.append(norm if unclipped is None else unclipped)
        return torch.stack(norms).detach()

    def _kernel_step(self, flat: Tensor, gradient: Tensor, state: dict[str, Tensor], lr: Any) -> Tensor | None:
        """Clips a gradient and takes a step by the kernel; returns the norm before, or None if there is no kernel."""
        if not isinstance(lr, Tensor):
            lr = torch.full((), lr, dtype=torch.float64, device=flat.device)
        options = {"weight_decay": self._weight_decay, "eps": self._eps, "rectify": self._rule == "radam"}
        return adam_step(flat, gradient, state, self._max_grad_norm, lr=lr, **options)

    def _torch_step(self, flat: Tensor, gradient: Tensor, state: dict[str, Tensor], lr: Any) -> None:
        """Takes a step with a gradient that has been clipped."""
        moments = [flat], [gradient], [state["exp_avg"]], [state["exp_avg_sq"]]
        options: dict[str, Any] = {"lr": lr, "weight_decay": self._weight_decay, "eps": self._eps}
        options |= {"beta1": _BETAS[0], "beta2": _BETAS[1]}
        if self._rule == "radam":
            radam(*moments, [state["step"]], foreach=False, capturable=flat.is_cuda, **options)
        else:
            adam(*moments, [], [state["step"]], amsgrad=False, maximize=False, fused=True, **options)

    def tensors(self) -> list[Tensor]:
        """Returns what `step` changes: parameters, gradients and moments, which are created if there are none."""
        for name, flat in self.flat.items():
            self._state[name] = self._state[name] or _no_moments(flat)
        return [*self.flat.values(), *self._gradients.values(), *(x for s in self._state.values() for x in s.values())]

    def _average_gradients(self) -> None:
        """Averages the gradients over ranks, in one operation."""
        gradients = list(self._gradients.values())
        flat = self._ranks.sum_(torch.cat(gradients)).div_(self._ranks.size)
        for gradient, averaged in zip(gradients, flat.split([len(g) for g in gradients]), strict=True):
            gradient.copy_(averaged)

    def state_dict(self) -> dict[str, Any]:
        return {name: dict(state) for name, state in self._state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, flat in self.flat.items():
            self._state[name] = {key: value.to(flat.device, copy=True) for key, value in state[name].items()}


def _flattened(module: nn.Module) -> Tensor:
    """Makes the parameters of a module views of one tensor [P], which is returned."""
    flat, start = torch.cat([p.detach().reshape(-1) for p in module.parameters()]), 0
    for p in module.parameters():
        p.data = flat[start : start + p.numel()].view_as(p)
        start += p.numel()
    return flat


def _as_flat(module: nn.Module) -> Tensor:
    """Returns the parameters of a module that are next to each other in memory as one tensor [P].

    Raises:
        ValueError: If they are not.
    """
    first, *others = parameters = [p.detach() for p in module.parameters() if p.numel()]
    ends = itertools.accumulate((p.nbytes for p in parameters), initial=first.data_ptr())
    if not all(p.is_contiguous() and p.data_ptr() == end for p, end in zip(others, [*ends][1:], strict=False)):
        raise ValueError("the parameters of a network are not next to each other in memory: create its optimizer first")
    return first.as_strided((sum(p.numel() for p in parameters),), (1,))


def _rate(lr: float | Tensor, flat: Tensor) -> float | Tensor:
    """Returns a learning rate as the step of parameters `flat` takes it: a float32 tensor on a GPU, else a number."""
    if flat.is_cuda and not isinstance(lr, Tensor):
        return torch.full((), lr, dtype=torch.float32, device=flat.device)
    return lr


def _no_moments(flat: Tensor) -> dict[str, Tensor]:
    """Returns the state of Adam before its first step, which it counts in float32, also for parameters in float64."""
    step = torch.zeros((), dtype=torch.float32, device=flat.device)
    return {"step": step, "exp_avg": torch.zeros_like(flat), "exp_avg_sq": torch.zeros_like(flat)}


def changed_by_steps(optimizers: Iterable[Optimizer], modules: Iterable[nn.Module]) -> list[Tensor]:
    """Returns what gradient steps change: what the optimizers change, and the buffers of the modules evaluated."""
    changed = [x for optimizer in optimizers for x in optimizer.tensors()]
    return [*changed, *(buffer for module in modules for buffer in module.buffers())]


class TargetNetwork:
    """A copy of a network that is updated towards it.

        soft update: theta' <- (1 - tau) theta' + tau theta;    hard update: theta' <- theta

    The parameters of `online` must be and stay next to each other in memory, where its optimizer has put them.

    Args:
        online: The network.
        tau: Fraction of a soft update.
        interval: Calls of `update` between two hard updates; None for a soft update at each call.
    """

    def __init__(self, online: nn.Module, tau: float, interval: int | None):
        self.module = copy.deepcopy(online).requires_grad_(False)
        """The copy."""
        self.module.zero_grad(set_to_none=True)
        self._online, self._own = _as_flat(online), _flattened(self.module)
        self._tau, self._interval = tau, interval
        self._calls = torch.zeros((), dtype=torch.int64, device=self._own.device)

    @torch.no_grad()
    def update(self) -> None:
        """Updates the copy softly, or, every `interval` calls, hard. Call it after each step of the online network.

        Nothing is read from a GPU or in a trace, so that CUDA graphs and traces can contain an update.
        """
        self._calls += 1
        if self._interval is None:
            self._interpolate(self._tau)
            return
        is_due = self._calls % self._interval == 0
        if is_due.is_cuda or is_tracing():
            self._own.copy_(torch.where(is_due, self._online, self._own))
        elif is_due:
            self._interpolate(1.0)

    def hard_update(self) -> None:
        """Sets the copy equal to the online network."""
        self._interpolate(1.0)

    @torch.no_grad()
    def _interpolate(self, tau: float) -> None:
        if tau == 1.0:
            self._own.copy_(self._online)
        else:
            self._own.lerp_(self._online, tau)

    def tensors(self) -> list[Tensor]:
        """Returns what `update` changes."""
        return [self._own, self._calls]

    def state_dict(self) -> dict[str, Any]:
        return {"module": self.module.state_dict(), "calls": int(self._calls)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["module"])
        self._calls.fill_(state["calls"])


def mean_metrics(
    reports: Tensor,
    names: tuple[str, ...],
    team: str,
    more: dict[str, Tensor] | None = None,
    *,
    ranks: Ranks = ONE,
) -> dict[str, float]:
    """Returns the mean of each metric over the minibatches [R, names] of an update, and `more` [] as they are.

    Both are one read by the host. Only the means are checked. They are averaged over `ranks`.

    Raises:
        NonFiniteError: If a metric is NaN or infinite. Names the metric and the first minibatch.
    """
    more = more or {}
    own = reports
    rest = [x.unsqueeze(0) for x in more.values()]
    if ranks.size > 1:
        joined = ranks.mean(torch.cat([reports.flatten(), *rest]).double())
        reports, *rest = joined.split([reports.numel(), *[1] * len(rest)])
        reports = reports.view_as(own)
    values = torch.cat([reports.mean(0), *rest]).tolist()
    metrics = dict(zip(names, values[: reports.shape[1]], strict=True))
    non_finite = [name for name, value in metrics.items() if not abs(value) < float("inf")]
    if non_finite:
        index = int((~reports.isfinite().all(1)).nonzero()[0])
        where = f"{_ranks_with_nan(own[index], ranks)}team {team}"
        raise NonFiniteError(
            f"{where}: {', '.join(non_finite)} became NaN or infinite in minibatch "
            f"{index} of the update. Lower algo.lr or algo.max_grad_norm."
        )
    return metrics | dict(zip(more, values[reports.shape[1] :], strict=True))


def _ranks_with_nan(report: Tensor, ranks: Ranks) -> str:
    """Returns the ranks whose part of the metrics [names] is NaN or infinite, as the start of a message."""
    if ranks.size == 1:
        return ""
    # The norms of averaged gradients are those of all ranks; a rank that only took part has a finite loss.
    bad = [r for r, own in enumerate(ranks.gather(report.detach())) if not bool(own[:1].isfinite().all())]
    return f"rank {', '.join(map(str, bad))}: " if bad and len(bad) < ranks.size else ""


def averaged_metrics(metrics: dict[str, float], ranks: Ranks) -> dict[str, float]:
    """Returns metrics averaged over ranks."""
    if ranks.size == 1 or not metrics:
        return metrics
    values = ranks.mean(torch.tensor([*metrics.values()], dtype=torch.float64)).tolist()
    return dict(zip(metrics, values, strict=True))
