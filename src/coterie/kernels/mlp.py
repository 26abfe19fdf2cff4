"""Multilayer perceptrons as one operator, `torch.ops.coterie.mlp`, forward and backward."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from coterie.kernels import native
from coterie.kernels.native import Operator

ACTIVATIONS = {"tanh": 0, "relu": 1, "silu": 2}
"""Codes of the activation functions that have a kernel, by name."""

_LINE = 64  # bytes of a cache line, to which rows are padded

_WIDE = 256  # columns of a layer with rows that are padded further, kWide in mlp.cpp
_WIDEST = {False: 1024, True: 256}  # columns of a layer, without and with normalization
_WIDEST_SILU = 512, 256  # columns of the input and of a layer with SiLU, which has no normalization


def mlp(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    *,
    norms: Sequence[tuple[Tensor, Tensor]] = (),
    activation: str = "tanh",
    activated: int,
) -> Tensor | None:
    """Applies linear layers, the first `activated` of which are followed by an activation.

    With `norms`, layer normalization is applied to the input and after every activation, or before every activation.

    Args:
        x: [M, in], or [G, M, in] with G sets of parameters.
        weights: Of each layer [in, out], or [G, in, out].
        biases: Of each layer [out], or [G, 1, out].
        norms: Scale and shift of each normalization [in], or [G, 1, in]; empty for none. As many as activations: before
            these; one more: of the input and after these.
        activation: `tanh`, `relu`, or `silu` without normalization; others have no kernel.
        activated: Number of layers with an activation: all, or all but the last.

    Returns:
        [M, out] or [G, M, out]; None if there is no kernel for these arguments.
    """
    if not has_kernel(x, weights, norms, activation, activated):
        return None
    save = activated > 0 and torch.is_grad_enabled()
    scales, shifts = [scale for scale, _ in norms], [shift for _, shift in norms]
    code = ACTIVATIONS.get(activation, 0)
    return _OPERATOR(x, weights, biases, scales, shifts, code, activated, save)[0]


def has_kernel(
    x: Tensor, weights: Sequence[Tensor], norms: Sequence[tuple[Tensor, Tensor]], activation: str, activated: int
) -> bool:
    """True if there is a kernel for the arguments of `mlp`."""
    if (activated and activation not in ACTIVATIONS) or not native.is_supported(x, weights[0]):
        return False
    if activated < len(weights) - 1:
        return False
    if x.ndim != weights[0].ndim or x.shape[-1] != weights[0].shape[-2] or x.shape[:-2] != weights[0].shape[:-2]:
        return False
    if any(weight.shape[-1] > _WIDEST[bool(norms)] for weight in weights):
        return False
    if activated and activation == "silu" and (norms or not _fits_silu(weights)):
        return False
    return len(norms) <= activated or x.shape[-1] <= _WIDEST[True]


def _fits_silu(weights: Sequence[Tensor]) -> bool:
    most_inputs, most = _WIDEST_SILU
    return weights[0].shape[-2] <= most_inputs and all(weight.shape[-1] <= most for weight in weights)


def sizes_and_parameters(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    norms: Sequence[tuple[Tensor, Tensor]],
    activation: str,
    activated: int,
) -> tuple[array[int], array[int]]:
    """Returns what the C function reads besides x [M, in]: shapes, and addresses of contiguous parameters."""
    scales, shifts = [scale for scale, _ in norms], [shift for _, shift in norms]
    sizes = _sizes(x, weights, ACTIVATIONS.get(activation, 0), activated, _normalization(scales, activated))
    return sizes, native.pointers([*weights, *biases, *scales, *shifts])


def eager_mlp(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    scales: Sequence[Tensor],
    shifts: Sequence[Tensor],
    activation: int,
    activated: int,
) -> Tensor:
    """The definition of the operator in PyTorch, used where its gradient is differentiated again."""

    def normalize(x: Tensor, index: int, when: int) -> Tensor:
        if kind != when:
            return x
        return functional.layer_norm(x, x.shape[-1:]) * scales[index] + shifts[index]

    kind = _normalization(scales, activated)
    x = normalize(x, 0, _AFTER)
    for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = x @ weight + bias
        if index < activated:
            x = normalize(x, index, _BEFORE)
            x = normalize(_FUNCTIONS[activation](x), index + 1, _AFTER)
    return x


_FUNCTIONS = (torch.tanh, torch.relu, functional.silu)
_AFTER, _BEFORE = 1, 2  # kAfter and kBefore in mlp.hpp


def _normalization(scales: Sequence[Tensor], activated: int) -> int:
    """Returns what is normalized, from the number of normalizations: nothing, as after or before activations."""
    return (_BEFORE if len(scales) == activated else _AFTER) if scales else 0


def _sizes(x: Tensor, weights: Sequence[Tensor], activation: int, activated: int, normalization: int):
    """Returns the shapes as the C functions read them."""
    widths = [weights[0].shape[-2], *(weight.shape[-1] for weight in weights)]
    sets, stride = (1, 0) if x.ndim == 2 else (x.shape[0], x.stride(0))
    return native.integers(
        *(sets, x.shape[-2], len(weights), activated, activation, normalization, stride, x.stride(-2)), *widths
    )


def _with_contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _saved_size(x: Tensor, weights: Sequence[Tensor], activated: int) -> int:
    """Returns the number of numbers that the forward pass saves: rows of padded outputs of the activated layers."""
    rows = x.shape[-2] * (x.shape[0] if x.ndim == 3 else 1)
    lanes = _LINE // x.element_size()
    columns = [(weight.shape[-1] + lanes - 1) // lanes * lanes for weight in weights[:activated]]
    return rows * sum(count + lanes if count > _WIDE else count for count in columns)


def _check_layers(
    operator: str,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor] | None,
    norms: tuple[Sequence[Tensor], Sequence[Tensor]],
    *,
    activation: int,
    activated: int,
) -> None:
    """Raises an error for parameters that a C function would read as something else; `biases` is None in gradients."""
    layers, scales = len(weights), norms[0]
    if not layers or activation not in ACTIVATIONS.values() or not 0 <= layers - activated <= 1:
        raise ValueError(f"{operator}: {layers} layers, activation={activation} after the first {activated}.")
    if weights[0].ndim not in (2, 3):
        raise ValueError(f"{operator}: weights[0] is {list(weights[0].shape)}, expected [in, out] or [G, in, out].")
    sets, floats = weights[0].shape[:-2], native.float_type(operator, weights[0])
    widths = [weights[0].shape[-2], *(weight.shape[-1] for weight in weights)]
    kind = _normalization(scales or norms[1], activated)
    if activated and activation == ACTIVATIONS["silu"] and (scales or not _fits_silu(weights)):
        raise ValueError(f"{operator}: SiLU with normalization, or layers of {widths} columns. There is no kernel.")
    if max(widths[1:]) > _WIDEST[bool(scales)] or min(widths[1:]) < 1 or (kind == _AFTER and widths[0] > _WIDEST[True]):
        raise ValueError(
            f"{operator}: layers of {widths} columns. There is no kernel for more than {_WIDEST}, nor for 0."
        )

    def named(name: str, tensors: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[native.Expected]:
        if len(tensors) != len(shapes):
            raise ValueError(f"{operator}: {len(tensors)} {name}, expected {len(shapes)}.")
        return [(f"{name}[{k}]", x, floats, shape) for k, (x, shape) in enumerate(zip(tensors, shapes, strict=True))]

    rows = [((*sets, 1, width) if sets else (width,)) for width in widths]
    matrices = [(*sets, *pair) for pair in pairwise(widths)]
    normed = {0: [], _AFTER: rows[: activated + 1], _BEFORE: rows[1 : activated + 1]}[kind]
    native.check(
        operator,
        *named("weights", weights, matrices),
        *(() if biases is None else named("biases", biases, rows[1:])),
        *named("scales", scales, normed),
        *named("shifts", norms[1], normed),
    )


def _check_input(operator: str, x: Tensor, weight: Tensor) -> None:
    """Raises an error for an input that a C function would read as something else."""
    shape = (*weight.shape[:-2], x.shape[-2] if x.ndim > 1 else -1, weight.shape[-2])
    native.check(operator, ("x", x, weight.dtype, shape))


def _prepare(weights, biases, scales, shifts, activation, activated, save):
    """Returns the operator as a function of x, for constant parameters."""
    _check_layers("mlp", weights, biases, (scales, shifts), activation=activation, activated=activated)
    weights, biases = [w.contiguous() for w in weights], [b.contiguous() for b in biases]
    tensors = [*weights, *biases, *(norm.contiguous() for norm in (*scales, *shifts))]
    parameters, columns, nothing = native.pointers(tensors), weights[-1].shape[-1], weights[0].new_empty(0)
    known: dict[Any, Any] = {}

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        x = _with_contiguous_rows(x)
        layout = x.shape, x.stride(), x.dtype, x.device
        sizes = known.get(layout)
        if sizes is None:
            _check_input("mlp", x, weights[0])
            sizes = known[layout] = _sizes(
                x, tensors[: len(weights)], activation, activated, _normalization(scales, activated)
            )
        out = x.new_empty((*x.shape[:-1], columns))
        saved = x.new_empty(_saved_size(x, weights, activated)) if save else nothing
        native.call("mlp_forward", x.dtype, sizes, x, parameters, out, saved if save else None)
        return out, saved

    return forward


def _forward(x, *constants):
    return _prepare(*constants)(x)


def _fake_forward(x, weights, biases, scales, shifts, activation, activated, save):
    return x.new_empty(*x.shape[:-1], weights[-1].shape[-1]), x.new_empty(
        _saved_size(x, weights, activated) if save else 0
    )


def _prepare_backward(weights, scales, shifts, activation, activated, needs_x):
    """Returns the operator as a function of grad, x and saved, for constant parameters."""
    _check_layers("mlp_backward", weights, None, (scales, shifts), activation=activation, activated=activated)
    tensors = [x.contiguous() for x in (*weights, *scales, *shifts)]
    parameters, columns, like = native.pointers(tensors), weights[-1].shape[-1], _parameters_like(weights, scales)
    known: dict[Any, Any] = {}

    def backward(grad: Tensor, x: Tensor, saved: Tensor) -> list[Tensor]:
        x, grad = _with_contiguous_rows(x), grad.contiguous()
        layout = x.shape, x.stride(), x.dtype, x.device, grad.shape, grad.dtype, saved.shape, saved.dtype
        sizes = known.get(layout)
        if sizes is None:
            _check_input("mlp_backward", x, weights[0])
            native.check(
                "mlp_backward",
                ("grad", grad, x.dtype, (*x.shape[:-1], columns)),
                ("saved", saved, x.dtype, (_saved_size(x, weights, activated),)),
            )
            sizes = known[layout] = _sizes(
                x, tensors[: len(weights)], activation, activated, _normalization(scales, activated)
            )
        x_grad, found = x.new_empty(x.shape if needs_x else (0,)), [torch.empty_like(p) for p in like]
        arguments = (sizes, x, parameters, grad, saved, x_grad if needs_x else None, native.pointers(found))
        native.call("mlp_backward", x.dtype, *arguments)
        return [x_grad, *found]

    return backward


def _backward(grad, x, saved, *constants):
    return _prepare_backward(*constants)(grad, x, saved)


def _fake_backward(grad, x, saved, weights, scales, shifts, activation, activated, needs_x):
    found = [torch.empty_like(p) for p in _parameters_like(weights, scales)]
    return [x.new_empty(x.shape if needs_x else (0,)), *found]


def _parameters_like(weights: Sequence[Tensor], scales: Sequence[Tensor]) -> list[Tensor]:
    """Returns tensors like weights, biases, scales and shifts."""

    def of_rows(parameter: Tensor) -> Tensor:
        columns, sets = parameter.shape[-1], weights[0].shape[:-2]
        return parameter.new_empty((*sets, 1, columns) if sets else (columns,))

    empty = [w.new_empty(w.shape) for w in weights]
    return [*empty, *map(of_rows, weights), *map(of_rows, (*scales, *scales))]


class _Mlp(torch.autograd.Function):
    """The operator with its gradient. Written out because the general wrapper of `register_autograd` takes 0.3 ms."""

    @staticmethod
    def forward(ctx, counts, activation, activated, save, x, *parameters):  # type: ignore[override]
        weights, biases, scales, shifts = _split(parameters, counts)
        out, saved = _OPERATOR.without_gradient(x, weights, biases, scales, shifts, activation, activated, save)
        ctx.save_for_backward(x, saved, *parameters)
        ctx.counts, ctx.activation, ctx.activated = counts, activation, activated
        ctx.mark_non_differentiable(saved)
        ctx.set_materialize_grads(False)
        return out, saved

    @staticmethod
    def backward(ctx, grad, _):  # type: ignore[override]
        if grad is None:
            return (None,) * (5 + 2 * sum(ctx.counts))
        x, saved, *parameters = ctx.saved_tensors
        needs_x = ctx.needs_input_grad[4]
        weights, biases, scales, shifts = _split(parameters, ctx.counts)
        if torch.is_grad_enabled():  # the gradient itself is differentiated
            inputs = [x, *parameters] if needs_x else parameters
            out = eager_mlp(x, weights, biases, scales, shifts, ctx.activation, ctx.activated)
            found = torch.autograd.grad(out, inputs, grad, create_graph=True)
            return (None, None, None, None, *(found if needs_x else (None, *found)))
        x_grad, *found = _BACKWARD(grad, x, saved, weights, scales, shifts, ctx.activation, ctx.activated, needs_x)
        return None, None, None, None, x_grad if needs_x else None, *found


def _split(parameters: Sequence[Tensor], counts: tuple[int, int]) -> tuple[Sequence[Tensor], ...]:
    """Returns weights, biases, scales and shifts; `counts`: number of layers and of normalizations."""
    layers, norms = counts
    edges = (0, layers, 2 * layers, 2 * layers + norms, 2 * layers + 2 * norms)
    return tuple(parameters[a:b] for a, b in pairwise(edges))


def _with_gradient(x, weights, biases, scales, shifts, activation, activated, save):
    counts = (len(weights), len(scales))
    if (len(biases), len(shifts)) != counts:
        raise ValueError(f"mlp: {len(biases)} biases and {len(shifts)} shifts, expected {counts[0]} and {counts[1]}.")
    return _Mlp.apply(counts, activation, activated, save, x, *weights, *biases, *scales, *shifts)


_BACKWARD = Operator(
    "mlp_backward",
    "(Tensor grad, Tensor x, Tensor saved, Tensor[] weights, Tensor[] scales, Tensor[] shifts, int activation, "
    "int activated, bool needs_x) -> Tensor[]",
    _backward,
    _fake_backward,
    prepare=(3, _prepare_backward),
)
_OPERATOR = Operator(
    "mlp",
    "(Tensor x, Tensor[] weights, Tensor[] biases, Tensor[] scales, Tensor[] shifts, int activation, int activated, "
    "bool save) -> (Tensor, Tensor)",
    _forward,
    _fake_forward,
    prepare=(1, _prepare),
)
_OPERATOR.set_gradient(_with_gradient)
