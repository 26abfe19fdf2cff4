"""Context for stepping environments and acting: no gradients, and no more threads than help."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from gymnasium.spaces import flatdim

from coterie.envs.contract.vector import VectorEnv
from coterie.kernels import native
from coterie.policies.base import Policy

_MAX_OBSERVED_NUMBERS = 1 << 14
_MAX_MULTIPLICATIONS, _MAX_KERNEL_MULTIPLICATIONS = 1 << 24, 1 << 22
"""Size of a batch of observations, and multiplications needed to act on it by PyTorch and by kernels, up to which one
thread is at least as fast as two. Measured on an AMD EPYC without kernels: 25 timesteps of 128 spread environments
(7,000 numbers) take 12.5 ms with one thread and 15 ms with two; of 512 environments 29 ms and 23 ms. With a GRU, 26
timesteps of 10 M multiplications take the same time with either, of 20 M 26 ms and 22 ms, and 128 timesteps of 40 M
211 ms and 145 ms. Other operations are too small for two threads then, but some of PyTorch's use them: a log_softmax of
48 rows takes 7 us with one and 12 to 98 us with two.

With kernels, the collection of IPPO and of recurrent MAPPO and QMIX took the same time with limits of one and four
million multiplications, in three turns of two threads each.
"""


@contextmanager
def inference_context(env: VectorEnv, policies: Iterable[Policy]) -> Iterator[None]:
    """Disables gradients and, where acting on one batch is little work, restricts PyTorch to one thread.

    Matrix products of a few dozen rows are finished before a second thread has taken its share. Kernels have a limit of
    their own.
    """
    threads, kernel_threads, single_thread = torch.get_num_threads(), native.num_threads(), False
    policies = [*policies]
    if env.device.type == "cpu" and max(threads, kernel_threads) > 1:
        single_thread = _multiplications(env, policies) <= _MAX_MULTIPLICATIONS
        if _multiplications(env, policies, own_sets=True) <= _MAX_KERNEL_MULTIPLICATIONS:
            kernel_threads = 1
    if single_thread:
        torch.set_num_threads(1)
    try:
        with torch.inference_mode(), native.threads(kernel_threads):
            yield
    finally:
        if single_thread:
            torch.set_num_threads(threads)


def _multiplications(env: VectorEnv, policies: Iterable[Policy], *, own_sets: bool = False) -> float:
    """Returns the multiplications to act on one batch, assuming that every agent reads every weight once; infinity if
    the batch itself is large. With `own_sets`, an agent reads only its own one of the sets in weights [G, in, out]."""
    observed = sum(role.n * flatdim(role.observation_space) for role in env.spec.roles)
    if env.num_envs * observed > _MAX_OBSERVED_NUMBERS:
        return math.inf
    return env.num_envs * sum(
        w.numel() * (1 if own_sets and w.ndim == 3 else p.team.n)
        for p in policies
        for net in p.networks
        for w in net.parameters()
    )
