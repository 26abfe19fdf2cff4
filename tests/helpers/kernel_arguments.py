"""Random arguments for every operator, right and wrong ones, for the test and for the sanitizers.

    LD_PRELOAD=$(c++ -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 \
        python tests/helpers/kernel_arguments.py LIBRARY 2000

calls the operators of a compiled library 2,000 times. The results of right arguments are compared with PyTorch; wrong
arguments have to raise an error. Nothing may read or write out of bounds.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import elu, huber_loss, layer_norm, relu

from coterie.core.specs import ActionSpec
from coterie.core.types import Action
from coterie.functional.policy_gradient import log_prob_and_entropy
from coterie.kernels import adam, attention, mixing, mlp, native, particle, policy_gradient, recurrent

Call = tuple[str, list[Any], Callable[..., Any]]
"""Name of an operator of `torch.ops.coterie`, right arguments, and a function that computes its first result."""

REFUSALS = (TypeError, ValueError, IndexError, RuntimeError)
MODULES = (adam, attention, mixing, mlp, particle, policy_gradient, recurrent)


class Draw:
    """Random sizes and tensors of one type."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self.dtype = self.random.choice([torch.float32, torch.float64])

    def size(self, *sizes: int) -> int:
        return self.random.choice(sizes)

    def tensor(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float64).to(self.dtype)

    def flags(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._generator) < 0.7

    def integers(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self._generator)


def _categorical(draw: Draw) -> Call:
    rows, choices = draw.size(0, 1, 5, 70), [draw.size(1, 2, 5, 17) for _ in range(draw.size(1, 2, 3))]
    logits, mask = draw.tensor(rows, sum(choices)), None
    action = torch.stack([draw.integers(count, rows) for count in choices], -1)
    if draw.size(0, 1):
        mask = draw.flags(rows, sum(choices)) | (torch.arange(sum(choices)) == 0)
    if draw.size(0, 1):
        noise = draw.tensor(rows, sum(choices)) if draw.size(0, 1) else None
        return "categorical_sample", [logits, mask, noise, choices], _sampled
    return "categorical", [logits, mask, action, choices], _log_prob


def _log_prob(logits: Tensor, mask: Tensor | None, action: Tensor, choices: Sequence[int]) -> Tensor:
    return log_prob_and_entropy(ActionSpec(tuple(choices)), logits, Action(action), log_std=None, mask=mask)[0]


def _sampled(logits: Tensor, mask: Tensor | None, noise: Tensor | None, choices: Sequence[int]) -> Tensor:
    scores = logits if mask is None else logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
    scores = torch.cat([part.log_softmax(-1) for part in scores.split([*choices], -1)], -1)
    scores = scores if noise is None else scores + noise
    return torch.stack([part.argmax(-1) for part in scores.split([*choices], -1)], -1)


def _categorical_backward(draw: Draw) -> Call:
    rows, choices = draw.size(0, 1, 5, 70), [draw.size(1, 2, 5) for _ in range(draw.size(1, 2))]
    action = torch.stack([draw.integers(count, rows) for count in choices], -1)

    def gradient(log_prob_grad: Tensor, entropy_grad: Tensor, logits: Tensor, *rest: Any) -> Tensor:
        logits = logits.detach().requires_grad_()
        mask, action, choices = rest
        spec = ActionSpec(tuple(choices))
        found = log_prob_and_entropy(spec, logits, Action(action), log_std=None, mask=mask)
        return torch.autograd.grad(found, logits, (log_prob_grad, entropy_grad))[0]

    arguments = [draw.tensor(rows), draw.tensor(rows), draw.tensor(rows, sum(choices)), None, action, choices]
    return "categorical_backward", arguments, gradient


def _policy_loss(draw: Draw) -> Call:
    shape = (draw.size(0, 1, 33), draw.size(1, 3))
    valid = draw.flags(*shape) if draw.size(0, 1) else None

    def loss(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, valid: Tensor | None, eps: Tensor) -> Tensor:
        ratio = (log_prob - old_log_prob).exp()
        each = -torch.minimum(ratio * advantage, ratio.clamp(1 - eps, 1 + eps) * advantage)
        valid = torch.ones_like(each, dtype=torch.bool) if valid is None else valid
        return each[valid].sum() / max(int(valid.sum()), 1)

    def first(*arguments: Any) -> Tensor:
        return torch.ops.coterie.clipped_policy_loss(*arguments)[0][0]

    loss.found = first  # type: ignore[attr-defined]
    clip_eps = torch.full((), 0.2, dtype=torch.float64)
    return "clipped_policy_loss", [*(draw.tensor(*shape) for _ in range(3)), valid, clip_eps], loss


def _value_loss(draw: Draw) -> Call:
    shape = (draw.size(0, 1, 33), draw.size(1, 3))
    valid = draw.flags(*shape[:-1]) if draw.size(0, 1) else None

    def loss(
        value: Tensor, old_value: Tensor, target: Tensor, valid: Tensor | None, clip_eps: float, delta: float
    ) -> Tensor:
        each = huber_loss(value, target, reduction="none", delta=delta)
        return (
            each.mean()
            if valid is None and len(value)
            else each[... if valid is None else valid].sum()
            / max(value.shape[-1] * (len(value) if valid is None else int(valid.sum())), value.shape[-1])
        )

    return "clipped_value_loss", [*(draw.tensor(*shape) for _ in range(3)), valid, 0.0, 1.0], loss


def _adam(draw: Draw) -> Call:
    count = draw.size(0, 1, 100)
    arguments = [*(draw.tensor(count) for _ in range(3)), draw.tensor(count).abs(), draw.tensor(1)[0]]
    numbers = [torch.full((), 0.01, dtype=torch.float64), torch.full((), float(draw.size(1, 6)))]
    return "adam_", [*arguments, *numbers, [0.9, 0.999, 1e-5, 0.0, 0.0, float(draw.size(0, 1))]], lambda *_: None


def _layers(draw: Draw) -> tuple[int, list[int], tuple[int, ...]]:
    widths = [draw.size(1, 3, 19), *(draw.size(1, 5, 16, 40) for _ in range(draw.size(1, 2, 3)))]
    return draw.size(0, 1, 7, 60), widths, draw.random.choice([(), (1,), (3,)])


def _mlp(draw: Draw) -> Call:
    rows, widths, sets = _layers(draw)
    count, between = len(widths) - 1, (1,) if sets else ()
    activated = count - draw.size(0, 1)
    weights = [draw.tensor(*sets, a, b) for a, b in pairwise(widths)]
    biases = [draw.tensor(*sets, *between, b) for b in widths[1:]]
    normed = widths[: activated + 1] if draw.size(0, 1) else []
    scales, shifts = ([draw.tensor(*sets, *between, b) for b in normed] for _ in range(2))
    activation = draw.size(0, 1) if normed else draw.size(0, 1, 2)
    arguments = [draw.tensor(*sets, rows, widths[0]), weights, biases, scales, shifts, activation, activated]

    def outputs(*arguments: Any) -> Tensor:
        return mlp.eager_mlp(*arguments[:-1])

    if draw.size(0, 1):
        return "mlp", [*arguments, bool(draw.size(0, 1))], outputs
    saved = torch.ops.coterie.mlp(*arguments, True)[1]
    x, weights, _, *rest = arguments
    return "mlp_backward", [draw.tensor(*sets, rows, widths[-1]), x, saved, weights, *rest, True], lambda *_: None


def _recurrent(draw: Draw) -> Call:
    kind, gates = draw.random.choice([("gru", 3), ("lstm", 4)])
    steps, rows, inputs, units = draw.size(0, 1, 4), draw.size(0, 1, 50), draw.size(1, 3), draw.size(1, 5, 16)
    sets = draw.random.choice([(), (2,)])
    between = (1,) if sets else ()
    x, first = draw.tensor(steps, *sets, rows, inputs), draw.flags(steps, *sets, rows)
    weights = [draw.tensor(*sets, n, gates * units) for n in (inputs, units)]
    bias, extra = draw.tensor(*sets, *between, gates * units), draw.tensor(*sets, *between, units)
    h, c = draw.tensor(*sets, rows, units), draw.tensor(*sets, rows, units)
    before = [x, first, h, *([c] if kind == "lstm" else []), *weights, bias, *([extra] if kind == "gru" else [])]
    if draw.size(0, 1):
        return kind, [*before, bool(draw.size(0, 1))], _gru_outputs if kind == "gru" else lambda *_: None
    out, *_, saved = getattr(torch.ops.coterie, kind)(*before, True)
    without_c = [x for k, x in enumerate(before) if kind == "gru" or k != 3]
    c_grad = None if kind == "gru" else draw.tensor(*sets, rows, units)
    return f"{kind}_backward", [*without_c, out, saved, torch.ones_like(out), c_grad, True], lambda *_: None


def _gru_outputs(
    x: Tensor, first: Tensor, h: Tensor, weight: Tensor, recurrent_weight: Tensor, bias: Tensor, *rest: Any
) -> Tensor:
    outs = []
    for inputs, starts in zip(x, first, strict=True):
        h = h * ~starts.unsqueeze(-1)
        own, other = inputs @ weight + bias, h @ recurrent_weight
        (r, z, n), (r_h, z_h, n_h) = own.chunk(3, -1), other.chunk(3, -1)
        n = torch.tanh(n + torch.sigmoid(r + r_h) * (n_h + rest[0]))
        h = n + torch.sigmoid(z + z_h) * (h - n)
        outs.append(h)
    return torch.stack(outs) if outs else x.new_empty((0, *h.shape))


def _qmix(draw: Draw) -> Call:
    rows, agents, inputs = draw.size(0, 1, 60), draw.size(1, 3), draw.size(1, 7)
    hidden, units = draw.size(1, 17), draw.size(1, 5, 32)
    sizes = ((inputs, 2 * hidden), (hidden, agents * units), (hidden, units), (inputs, 2 * units), (units, 1))
    layers = [x for size in sizes for x in (draw.tensor(*size), draw.tensor(*size[1:]))]
    q, state = draw.tensor(rows, agents), draw.tensor(rows, inputs)
    if draw.size(0, 1):
        return "qmix", [q, state, layers, bool(draw.size(0, 1))], _qmix_value
    saved = torch.ops.coterie.qmix(q, state, layers, True)[1]
    return "qmix_backward", [draw.tensor(rows), q, state, saved, layers, bool(draw.size(0, 1))], lambda *_: None


def _qmix_value(q: Tensor, state: Tensor, layers: Sequence[Tensor], _save: bool) -> Tensor:
    def linear(x: Tensor, k: int) -> Tensor:
        return x @ layers[2 * k] + layers[2 * k + 1]

    h1, h2 = relu(linear(state, 0)).chunk(2, -1)
    c, v = linear(state, 3).chunk(2, -1)
    w1 = linear(h1, 1).abs().unflatten(-1, (q.shape[-1], -1))
    hidden = elu((q.unsqueeze(-1) * w1).sum(-2) + c)
    return (hidden * linear(h2, 2).abs()).sum(-1) + linear(relu(v), 4).squeeze(-1)


def _attention(draw: Draw) -> Call:
    samples, entities, units, heads = draw.size(1, 5, 60), draw.size(1, 4, 12), draw.size(16, 64), draw.size(1, 2)
    contexts = draw.integers(entities, draw.size(1, 3), draw.size(1, 5))
    x, present = draw.tensor(samples, entities, units), draw.flags(samples, entities) if draw.size(0, 1) else None
    parameters = [0.3 * draw.tensor(*size) for size in ((units, 3 * units), (3 * units,), (units, units), (units,))]
    arguments = [present, contexts, *parameters, heads]
    if draw.size(0, 1):
        return "attention", [x, *arguments, bool(draw.size(0, 1))], _attended
    saved = torch.ops.coterie.attention(x, *arguments, True)[1]
    grad = draw.tensor(samples, len(contexts), units)
    return "attention_backward", [grad, x, saved, *arguments, True], lambda *_: None


def _attended(
    x: Tensor,
    present: Tensor | None,
    contexts: Tensor,
    project: Tensor,
    project_bias: Tensor,
    mix: Tensor,
    mix_bias: Tensor,
    heads: int,
    _save: bool,
) -> Tensor:
    present = torch.ones(x.shape[:2], dtype=torch.bool) if present is None else present
    x = layer_norm(x, x.shape[-1:])
    means = []
    for context in contexts:
        own, here = x[:, context], present[:, context]
        q, k, v = ((own @ project + project_bias).unflatten(-1, (3, heads, -1))).unbind(-3)
        score = torch.einsum("mihd,mjhd->mhij", q, k) / x.shape[-1] ** 0.5
        weight = score.masked_fill(~here[:, None, None], torch.finfo(x.dtype).min).softmax(-1) * here[:, None, None]
        mixed = torch.einsum("mhij,mjhd->mihd", weight, v).flatten(-2)
        each = layer_norm(own + mixed @ mix + mix_bias, x.shape[-1:])
        means.append((each * here.unsqueeze(-1)).sum(1) / here.sum(1, keepdim=True).clamp(min=1))
    return torch.stack(means, 1)


def _attend(draw: Draw) -> Call:
    samples, queries, members = draw.size(0, 1, 5, 60), draw.size(0, 1, 4), draw.size(1, 3, 12)
    units, heads = draw.size(32, 64), draw.size(1, 2)
    query, key, value = (draw.tensor(samples, n, units) for n in (queries, members, members))
    visible = draw.flags(samples, queries, members) if draw.size(0, 1) else None
    if draw.size(0, 1):
        return "attend", [query, key, value, visible, heads, bool(draw.size(0, 1))], _attended_by_queries
    weights = torch.ops.coterie.attend(query, key, value, visible, heads, True)[1]
    grad = draw.tensor(samples, queries, units)
    return "attend_backward", [grad, query, key, value, visible, weights, heads], _query_gradient


def _query_gradient(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, _weights: Tensor, heads: int
) -> Tensor:
    query = query.detach().requires_grad_()
    out = _attended_by_queries(query, key, value, visible, heads, True)
    return torch.autograd.grad(out, query, grad)[0]


def _attended_by_queries(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, heads: int, _save: bool
) -> Tensor:
    q, k, v = (x.unflatten(-1, (heads, -1)) for x in (query, key, value))
    score = torch.einsum("mqhd,mnhd->mhqn", q, k) / q.shape[-1] ** 0.5
    if visible is not None:
        score = score.masked_fill(~visible.unsqueeze(1), torch.finfo(score.dtype).min)
    weight = score.softmax(-1) if visible is None else score.softmax(-1) * visible.unsqueeze(1)
    return torch.einsum("mhqn,mnhd->mqhd", weight, v).flatten(-2)


MAKERS = (
    _attend,
    _attention,
    _categorical,
    _categorical_backward,
    _policy_loss,
    _value_loss,
    _adam,
    _mlp,
    _recurrent,
    _qmix,
)


def _spoiled_tensor(x: Tensor, draw: Draw) -> Tensor:
    """Returns a tensor of another type, shape or number of axes, or integers out of range."""
    spoilers: list[Callable[[], Tensor]] = [
        lambda: x.to(torch.float64 if x.dtype is not torch.float64 else torch.float32),
        lambda: x.to(torch.int32),
        lambda: x.to(torch.float16),
        lambda: x.unsqueeze(0),
        lambda: torch.cat([x, x]) if x.ndim and len(x) else x.new_empty((3, *x.shape)),
        lambda: x[..., :-1] if x.ndim and x.shape[-1] else x.unsqueeze(-1),
        lambda: x.new_empty(0) if x.numel() else x.new_empty((2, 2, 2, 2)),
    ]
    if x.dtype is torch.int64 and x.numel():
        wrong = draw.random.choice([-1, 10**12, -(2**62), 2**62, 17])
        spoilers += [lambda: torch.full_like(x, wrong)] * 8
    return draw.random.choice(spoilers)()


def spoil(name: str, arguments: list[Any], draw: Draw) -> list[Any]:
    """Returns a copy of an operator's arguments with one of them wrong."""
    k = draw.random.choice([k for k, x in enumerate(arguments) if isinstance(x, Tensor) or (isinstance(x, list) and x)])
    return [*arguments[:k], _spoiled(name, arguments[k], draw), *arguments[k + 1 :]]


def _spoiled(name: str, x: Any, draw: Draw) -> Any:
    if isinstance(x, Tensor):
        return _spoiled_tensor(x, draw)
    at = draw.random.randrange(len(x))
    # A gradient for one layer more or less may be right: its results depend on the others alone.
    if isinstance(x[0], Tensor) and (draw.size(0, 1) or name.endswith("_backward")):
        return [*x[:at], _spoiled_tensor(x[at], draw), *x[at + 1 :]]
    if isinstance(x[0], int) and draw.size(0, 1):
        return [*x[:at], draw.random.choice([0, -1, x[at] + 1, 10**12]), *x[at + 1 :]]
    return x[:-1] if draw.size(0, 1) else [*x, x[0]]


def _strided(arguments: list[Any], name: str) -> list[Any]:
    """Returns arguments with tensors that are not contiguous; Adam changes its tensors in place and refuses them."""
    if name == "adam_":
        return arguments

    def apart(x: Any) -> Any:
        if isinstance(x, list):
            return [apart(y) for y in x]
        return torch.stack([x, x], -1)[..., 0] if isinstance(x, Tensor) else x

    return [apart(x) for x in arguments]


def call_once(seed: int) -> tuple[str, str]:
    """Calls an operator with right and with wrong arguments.

    Returns:
        Name of the operator, and `refused`, or `equal` for spoiled arguments that are right as well.

    Raises:
        AssertionError: If a result is wrong, or wrong arguments are accepted.
    """
    draw = Draw(seed)
    name, arguments, expected = draw.random.choice(MAKERS)(draw)
    operator = getattr(torch.ops.coterie, name)
    _compare(operator, _strided(arguments, name) if draw.size(0, 1) else arguments, expected)
    wrong = spoil(name, arguments, draw)
    try:
        compared = _compare(operator, wrong, expected)
    except REFUSALS:
        return name, "refused"
    assert compared, f"{name} accepts {wrong}"
    return name, "equal"


def _compare(operator: Any, arguments: list[Any], expected: Callable[..., Any]) -> bool:
    """Compares the first result with PyTorch; False if there is nothing to compare with."""
    found = getattr(expected, "found", operator)(*arguments)
    right = expected(*arguments)
    if right is not None:
        first = found if isinstance(found, Tensor) else found[0]
        tolerance = 1e-9 if right.dtype is torch.float64 else 2e-4
        torch.testing.assert_close(first, right, rtol=tolerance, atol=tolerance)
    return right is not None


def main() -> None:
    native._library = ctypes.CDLL(sys.argv[1])
    calls = Counter(call_once(seed) for seed in range(int(sys.argv[2])))
    for (name, outcome), number in sorted(calls.items()):
        print(f"{name:24} {outcome:8} {number:6,}")


if __name__ == "__main__":
    main()
