"""Acting of a policy as one call, and several timesteps of it in a particle world without Python code between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.kernels import mlp, native
from coterie.kernels.particle import StepMemory


class Layers(NamedTuple):
    """Arguments of `coterie.kernels.mlp.mlp`."""

    weights: Sequence[Tensor]
    biases: Sequence[Tensor]
    norms: Sequence[tuple[Tensor, Tensor]] = ()
    activation: str = "tanh"
    activated: int = 0


class Actor(NamedTuple):
    """A policy with discrete actions, whose agents share their parameters.

    Attributes:
        body: Layers of the network; with `rnn` those before it.
        rnn: Parameters of a GRU, see `coterie.kernels.recurrent.gru`: W, U, b and c; None for a feed-forward network.
        head: The layer after the GRU.
        choices: Number of choices of each component.
        categorical: True if actions are sampled from logits, False if they are epsilon-greedy.
        scale: Mean and standard deviation of observations [D] each, and the largest absolute value; None for
            observations as they are.
        ids: True if the network reads a one-hot number of the agent.
        last_action: True if it reads the agent's last action, before the number.
        epsilon: Probability of a uniform choice.
    """

    body: Layers
    rnn: Sequence[Tensor] | None
    head: Layers | None
    choices: tuple[int, ...]
    categorical: bool
    scale: tuple[Tensor, Tensor, float] | None
    ids: bool
    last_action: bool
    epsilon: float = 0.0

    def extra_inputs(self, agents: int) -> tuple[int, int]:
        """Returns the numbers that the network reads besides observations: of the last action, and of who it is."""
        return sum(self.choices) if self.last_action else 0, agents if self.ids else 0

    @property
    def tensors(self) -> list[Tensor]:
        """All parameters and statistics."""
        layers = [part for part in (self.body, self.head) if part is not None]
        found = [x for part in layers for x in (*part.weights, *part.biases, *(y for norm in part.norms for y in norm))]
        return found + [*(self.rnn or ()), *(self.scale[:2] if self.scale else ())]


class Inputs(NamedTuple):
    """Inputs of a policy at a timestep.

    Attributes:
        obs: [B, N, D].
        first: [B, N] bool, True where the hidden state is reset before the observation is read.
        mask: [B, N, sum A] bool; None: all choices are available.
        h: Hidden state of the GRU [B, N, H]; None without.
        last: Last actions [B, N, sum A]; None if they are not read.
    """

    obs: Tensor
    first: Tensor
    mask: Tensor | None = None
    h: Tensor | None = None
    last: Tensor | None = None


class Acted(NamedTuple):
    """Results of acting.

    Attributes:
        action: [T, B, N, K] int64.
        log_prob: [T, B, N], of categorical actions; None for others.
        h: Hidden state of the GRU after the last timestep [B, N, H]; None without.
        last: Last actions [B, N, sum A], with `last_action`; else None.
    """

    action: Tensor
    log_prob: Tensor | None
    h: Tensor | None
    last: Tensor | None


class PreparedActor:
    """An actor for one number of environments and agents, as long as the addresses of its tensors are the same.

    Args:
        actor: The actor.
        obs: Observations, of which shape and type are read [B, N, D].

    Attributes:
        epsilon: Probability of a uniform choice.
    """

    def __init__(self, actor: Actor, obs: Tensor):
        envs, agents, observed = obs.shape
        rows, hidden = envs * agents, 0 if actor.rnn is None else len(actor.rnn[1])
        columns, (encoded, ids) = sum(actor.choices), actor.extra_inputs(agents)
        inputs = observed + encoded + ids
        self._actor, self._shape = actor, (envs, agents, len(actor.choices))
        self._widths = {"obs": observed, "mask": columns, "h": hidden, "last": encoded}
        self._noise_width = columns + (0 if actor.categorical else 1)
        numbers = (observed, encoded, ids, inputs, actor.body.weights[-1].shape[-1], hidden, columns)
        self._sizes = (envs, agents, *numbers, len(actor.choices), int(actor.categorical), *actor.choices)
        self.epsilon, self._clip = actor.epsilon, actor.scale[2] if actor.scale else 0.0
        self._body = mlp.sizes_and_parameters(obs.new_empty(rows, inputs), *actor.body)
        self._rnn = self._head = None
        if actor.rnn is not None and actor.head is not None:
            sizes = native.integers(1, 1, rows, actor.body.weights[-1].shape[-1], hidden)
            self._rnn = sizes, native.pointers(actor.rnn)
            self._head = mlp.sizes_and_parameters(obs.new_empty(rows, hidden), *actor.head)
        pairs = (self._body, self._rnn, self._head)
        self._constants = [None if pair is None else pair[i].buffer_info()[0] for i in (0, 1) for pair in pairs]
        self._scale = (actor.scale or (None, None))[:2]

    def __call__(self, inputs: Inputs, noise: Sequence[Tensor] | None, world: StepMemory | None = None) -> Acted:
        """Acts once; with a world acts and steps as often as it says, and writes the results of steps to it.

        Args:
            inputs: Of the first timestep. The world's other timesteps have no masks.
            noise: Contiguous noise [B, N, ..] of each timestep; None for the most likely actions.
            world: Steps of a world.

        Raises:
            TypeError: If inputs have another type.
            ValueError: If they have another shape, or not what the network reads.
        """
        obs, steps = inputs.obs, 1 if world is None else len(world.reward)
        self._check(inputs, noise, steps)
        (envs, agents, components), h, last = self._shape, inputs.h, inputs.last
        out = Acted(
            action=obs.new_empty((steps, envs, agents, components), dtype=torch.int64),
            log_prob=obs.new_empty(steps, envs, agents) if self._actor.categorical else None,
            h=None if h is None else h.new_empty(h.shape),
            last=None if last is None else last.new_empty(last.shape),
        )
        kept = [None if x is None else x.contiguous() for x in inputs]
        noises = None if noise is None else native.pointers(noise)
        of_world: list[Tensor | int | None] = [None] * 9
        if world is not None:
            of_world = [x.buffer_info()[0] for x in (world.episodes, world.sizes, world.numbers)]
            of_world += [world.flat, world.coasting, world.returns, world.obs, world.reward, world.counts]
        addresses = native.addresses(
            *(*kept[:3], *self._scale, *kept[3:], *self._constants),
            None if noises is None else noises.buffer_info()[0],
            *out,
            *of_world,
        )
        sizes, numbers = native.integers(steps, *self._sizes), native.reals(self.epsilon, self._clip)
        native.call("rollout", obs.dtype, sizes, numbers, addresses)
        return out

    def _check(self, inputs: Inputs, noise: Sequence[Tensor] | None, steps: int) -> None:
        """Raises an error for what the C function would read as something else."""
        rows, floats, widths = self._shape[:2], inputs.obs.dtype, self._widths
        native.check(
            "rollout",
            ("obs", inputs.obs, floats, (*rows, widths["obs"])),
            ("first", inputs.first, torch.bool, rows),
            ("mask", inputs.mask, torch.bool, (*rows, widths["mask"])),
            ("h", inputs.h, floats, (*rows, widths["h"])),
            ("last", inputs.last, floats, (*rows, widths["last"])),
            *(("noise", x, floats, (*rows, self._noise_width)) for x in noise or ()),
        )
        for name in ("h", "last"):
            if (getattr(inputs, name) is None) == (widths[name] > 0):
                raise ValueError(f"rollout: {name} is missing, or not read by the network.")
        if noise is not None and len(noise) != steps:
            raise ValueError(f"rollout: noise of {len(noise)} timesteps, expected {steps}.")


def has_kernel(actor: Actor, obs: Tensor) -> bool:
    """True if there is a kernel for an actor that reads observations [B, N, D]."""
    tensors = actor.tensors
    if obs.ndim != 3 or not native.is_supported(obs, *tensors) or not all(x.is_contiguous() for x in tensors):
        return False
    if obs.shape[-1] + sum(actor.extra_inputs(obs.shape[1])) != len(actor.body.weights[0]):
        return False
    return all(
        part.weights[0].ndim == 2
        and mlp.has_kernel(part.weights[0].T[:1], part.weights, part.norms, part.activation, part.activated)
        for part in (actor.body, actor.head)
        if part is not None
    )
