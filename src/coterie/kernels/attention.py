"""Attention as operators: `torch.ops.coterie.attend`, of queries to keys and values, and `torch.ops.coterie.attention`,
residual attention between entities in several contexts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.kernels import native
from coterie.kernels.native import Operator

_LINE = 64  # bytes of the longest vectors, which the units of a head fill
_MOST_UNITS = 1024


def attend(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, heads: int) -> Tensor | None:
    """Returns the attention of queries to keys and values, see `coterie.nets.attention.attend`.

    None if there is no kernel for the types, the sizes or the device.
    """
    if not native.is_supported(query, key, value) or not _has_kernel(query, heads):
        return None
    return _ATTEND(query, key, value, visible, heads, torch.is_grad_enabled())[0]


def _has_kernel(x: Tensor, heads: int) -> bool:
    """Returns True if the units of each of the heads fill vectors."""
    units = x.shape[-1]
    return 0 < units <= _MOST_UNITS and units % heads == 0 and units // heads % (_LINE // x.element_size()) == 0


def _check_attend(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, heads: int) -> None:
    """Raises an error for arguments that a C function would read as something else."""
    if query.ndim != 3 or key.ndim != 3 or heads < 1 or not _has_kernel(query, heads):
        raise ValueError(
            f"attend: queries {list(query.shape)} and keys {list(key.shape)} with {heads} heads, expected [M, Q, E] "
            "and [M, N, E], with heads that fill vectors."
        )
    floats, (samples, queries, units) = native.float_type("attend", query), query.shape
    members = key.shape[1]
    native.check(
        "attend",
        ("query", query, floats, query.shape),
        ("key", key, floats, (samples, members, units)),
        ("value", value, floats, key.shape),
    )
    if visible is not None:
        all_alike = [size == 1 for size in visible.shape[:2]] if visible.ndim == 3 else [False, False]
        seen = [1 if alike else size for alike, size in zip(all_alike, (samples, queries), strict=True)]
        native.check("attend", ("visible", visible, torch.bool, (*seen, members)))


def _with_rows(x: Tensor) -> Tensor:
    """Returns x [M, N, E] such that the units of a row follow one another."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _like(x: Tensor, *, zero: bool = False) -> Tensor:
    """Returns a dense tensor with the shape of x [M, N, E], whose outer axis in memory is that of x."""
    make = x.new_zeros if zero else x.new_empty
    samples, tokens, units = x.shape
    return make(samples, tokens, units) if x.stride(0) >= x.stride(1) else make(tokens, samples, units).transpose(0, 1)


def _rows_of_attend(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Returns the arguments as the C functions read them: keys and values have the same strides."""
    query, key, value = _with_rows(query), _with_rows(key), _with_rows(value)
    if key.stride() != value.stride():
        key, value = key.contiguous(), value.contiguous()
    if visible is not None:
        visible = visible.expand(len(query), query.shape[1], key.shape[1])
    return query, key, value, visible


def _sizes_of_attend(query: Tensor, key: Tensor, visible: Tensor | None, heads: int, *more: Tensor):
    strides = (0, 0, 0) if visible is None else visible.stride()
    axes = [stride for x in (query, key) for stride in x.stride()[:2]]
    more_axes = [stride for x in more for stride in x.stride()[:2]]
    return native.integers(*query.shape[:2], query.shape[2], heads, key.shape[1], *axes, *strides, *more_axes)


def _scale(query: Tensor, heads: int):
    return native.reals((query.shape[-1] // heads) ** -0.5)


def _weights_of_attend(query: Tensor, key: Tensor, heads: int, save: bool) -> Tensor:
    """Returns the tensor of attention weights [M, Q, heads, N]; empty if they are not saved."""
    return query.new_empty((*query.shape[:2], heads, key.shape[1]) if save else (0,))


def _attend_forward(query, key, value, visible, heads, save):
    _check_attend(query, key, value, visible, heads)
    query, key, value, visible = _rows_of_attend(query, key, value, visible)
    out, weights = _like(query), _weights_of_attend(query, key, heads, save)
    sizes, scale = _sizes_of_attend(query, key, visible, heads, out), _scale(query, heads)
    tokens = native.pointers((query, key, value))
    native.call("attend_forward", query.dtype, sizes, scale, tokens, visible, out, weights if save else None)
    return out, weights


def _fake_attend_forward(query, key, value, visible, heads, save):
    return _like(_with_rows(query)), _weights_of_attend(query, key, heads, save)


def _attend_backward(grad, query, key, value, visible, weights, heads):
    _check_attend(query, key, value, visible, heads)
    native.check(
        "attend_backward",
        ("grad", grad, query.dtype, query.shape),
        ("weights", weights, query.dtype, (*query.shape[:2], heads, key.shape[1])),
    )
    found = _fake_attend_backward(grad, query, key, value, visible, weights, heads)
    query, key, value, visible = _rows_of_attend(query, key, value, visible)
    grad, weights = _with_rows(grad), weights.contiguous()
    sizes, scale = _sizes_of_attend(query, key, visible, heads, grad, *found[:2]), _scale(query, heads)
    tokens, gradients = native.pointers((query, key, value)), native.pointers(found)
    native.call("attend_backward", query.dtype, sizes, scale, tokens, visible, weights, grad, gradients)
    return found


def _fake_attend_backward(grad, query, key, value, visible, weights, heads):
    key = _with_rows(key)
    return [_like(_with_rows(query), zero=True), _like(key, zero=True), _like(key, zero=True)]


class _Attend(torch.autograd.Function):
    """The operator with its gradient."""

    @staticmethod
    def forward(ctx, query, key, value, visible, heads, save):  # type: ignore[override]
        out, weights = _ATTEND.without_gradient(query, key, value, visible, heads, save)
        ctx.save_for_backward(query, key, value, visible, weights)
        ctx.heads = heads
        ctx.mark_non_differentiable(weights)
        ctx.set_materialize_grads(False)
        return out, weights

    @staticmethod
    def backward(ctx, grad, _):  # type: ignore[override]
        if grad is None:
            return (None,) * 6
        return *_ATTEND_BACKWARD(grad, *ctx.saved_tensors, ctx.heads), None, None, None


_ATTEND_BACKWARD = Operator(
    "attend_backward",
    "(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? visible, Tensor weights, int heads) -> Tensor[]",
    _attend_backward,
    _fake_attend_backward,
)
_ATTEND = Operator(
    "attend",
    "(Tensor query, Tensor key, Tensor value, Tensor? visible, int heads, bool save) -> (Tensor, Tensor)",
    _attend_forward,
    _fake_attend_forward,
)
_ATTEND.set_gradient(_Attend.apply)


class Projections(NamedTuple):
    """Parameters of the attention.

    Attributes:
        project, project_bias: Of queries, keys and values, [E, 3 E] and [3 E].
        mix, mix_bias: Of what the heads attend to, [E, E] and [E].
    """

    project: Tensor
    project_bias: Tensor
    mix: Tensor
    mix_bias: Tensor


def attention(
    x: Tensor, present: Tensor | None, contexts: Tensor, parameters: Projections, heads: int
) -> Tensor | None:
    """Residual attention and the mean over each context, see `coterie.nets.entity_critic.ResidualAttention`.

    Args:
        x: Entities [M, S, E].
        present: [M, S] bool; None: all are present.
        contexts: [C, N] int64, the entities of each context.
        parameters: Weights and biases.
        heads: Number of heads.

    Returns:
        [M, C, E]; None if there is no kernel for the types, the sizes or the device.
    """
    if not native.is_supported(x, *parameters) or not _fills_vectors(x, heads):
        return None
    return _OPERATOR(x, present, contexts, *parameters, heads, torch.is_grad_enabled())[0]


def _fills_vectors(x: Tensor, heads: int) -> bool:
    """Returns True if the units of x [M, S, E] fill vectors, and the heads have the same number of them."""
    units = x.shape[-1]
    return 0 < units <= _MOST_UNITS and units % heads == 0 and units % (_LINE // x.element_size()) == 0


def _sizes(x: Tensor, contexts: Tensor, heads: int):
    return native.integers(*x.shape, heads, *contexts.shape)


def _saved(x: Tensor, contexts: Tensor, heads: int, save: bool) -> Tensor:
    """Returns the tensor for what the backward pass needs."""
    samples, entities, units = x.shape
    line, queries = _LINE // x.element_size(), contexts.numel()
    of_sample = entities * 3 * units + queries * (heads * contexts.shape[1] + units + 1)
    return x.new_empty(-(-samples // line) * line * of_sample * int(save))


def _check(
    operator: str, x: Tensor, present: Tensor | None, contexts: Tensor, parameters: Sequence[Tensor], heads: int
) -> None:
    """Raises an error for arguments that a C function would read as something else."""
    if x.ndim != 3 or contexts.ndim != 2 or heads < 1 or x.shape[-1] % heads or not x.shape[1]:
        raise ValueError(
            f"{operator}: x is {list(x.shape)} and contexts {list(contexts.shape)}, expected [M, S, E] and [C, N], "
            f"with E a multiple of the {heads} heads."
        )
    floats, (samples, entities, units) = native.float_type(operator, x), x.shape
    if not _fills_vectors(x, heads):
        raise ValueError(f"{operator}: {units} units. There is no kernel for these.")
    project, project_bias, mix, mix_bias = parameters
    native.check(
        operator,
        ("present", present, torch.bool, (samples, entities)),
        ("contexts", contexts, torch.int64, contexts.shape),
        ("project", project, floats, (units, 3 * units)),
        ("project_bias", project_bias, floats, (3 * units,)),
        ("mix", mix, floats, (units, units)),
        ("mix_bias", mix_bias, floats, (units,)),
    )
    if contexts.numel() and not 0 <= int(contexts.min()) <= int(contexts.max()) < entities:
        raise IndexError(f"{operator}: contexts of entities {contexts.tolist()}, but there are {entities}.")


def _forward(x, present, contexts, project, project_bias, mix, mix_bias, heads, save):
    parameters = (project, project_bias, mix, mix_bias)
    _check("attention", x, present, contexts, parameters, heads)
    x, contexts, parameters = x.contiguous(), contexts.contiguous(), [p.contiguous() for p in parameters]
    present = None if present is None else present.contiguous()
    out, saved = x.new_empty(len(x), len(contexts), x.shape[-1]), _saved(x, contexts, heads, save)
    sizes = _sizes(x, contexts, heads)
    inputs = (sizes, x, present, contexts, native.pointers(parameters))
    native.call("attention_forward", x.dtype, *inputs, out, saved if save else None)
    return out, saved


def _fake_forward(x, present, contexts, project, project_bias, mix, mix_bias, heads, save):
    return x.new_empty(len(x), len(contexts), x.shape[-1]), _saved(x, contexts, heads, save)


def _backward(grad, x, saved, present, contexts, project, project_bias, mix, mix_bias, heads, needs_x):
    parameters = (project, project_bias, mix, mix_bias)
    _check("attention_backward", x, present, contexts, parameters, heads)
    native.check(
        "attention_backward",
        ("grad", grad, x.dtype, (len(x), len(contexts), x.shape[-1])),
        ("saved", saved, x.dtype, _saved(x, contexts, heads, True).shape),
    )
    x, contexts, grad = x.contiguous(), contexts.contiguous(), grad.contiguous()
    parameters = [p.contiguous() for p in parameters]
    present = None if present is None else present.contiguous()
    found = _empty_gradients(x, parameters, needs_x)
    addresses = native.addresses(found[0].data_ptr() if needs_x else None, *(g.data_ptr() for g in found[1:]))
    inputs = (_sizes(x, contexts, heads), x, present, contexts, native.pointers(parameters))
    native.call("attention_backward", x.dtype, *inputs, saved, grad, addresses)
    return found


def _fake_backward(grad, x, saved, present, contexts, project, project_bias, mix, mix_bias, heads, needs_x):
    return _empty_gradients(x, (project, project_bias, mix, mix_bias), needs_x)


def _empty_gradients(x: Tensor, parameters: Sequence[Tensor], needs_x: bool) -> list[Tensor]:
    return [x.new_empty(x.shape if needs_x else (0,)), *(p.new_empty(p.shape) for p in parameters)]


class _Attention(torch.autograd.Function):
    """The operator with its gradient."""

    @staticmethod
    def forward(ctx, x, present, contexts, project, project_bias, mix, mix_bias, heads, save):  # type: ignore[override]
        parameters = (project, project_bias, mix, mix_bias)
        out, saved = _OPERATOR.without_gradient(x, present, contexts, *parameters, heads, save)
        ctx.save_for_backward(x, saved, present, contexts, *parameters)
        ctx.heads = heads
        ctx.mark_non_differentiable(saved)
        ctx.set_materialize_grads(False)  # `saved` is large
        return out, saved

    @staticmethod
    def backward(ctx, grad, _):  # type: ignore[override]
        if grad is None:
            return (None,) * 9
        needs_x = ctx.needs_input_grad[0]
        x, *parameters = _BACKWARD(grad, *ctx.saved_tensors, ctx.heads, needs_x)
        return x if needs_x else None, None, None, *parameters, None, None


_ARGUMENTS = (
    "Tensor? present, Tensor contexts, Tensor project, Tensor project_bias, Tensor mix, Tensor mix_bias, int heads"
)
_BACKWARD = Operator(
    "attention_backward",
    f"(Tensor grad, Tensor x, Tensor saved, {_ARGUMENTS}, bool needs_x) -> Tensor[]",
    _backward,
    _fake_backward,
)
_OPERATOR = Operator("attention", f"(Tensor x, {_ARGUMENTS}, bool save) -> (Tensor, Tensor)", _forward, _fake_forward)
_OPERATOR.set_gradient(_Attention.apply)
