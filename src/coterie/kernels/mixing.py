"""The mixing network of QMIX as one operator, `torch.ops.coterie.qmix`, forward and backward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.kernels import native
from coterie.kernels.native import Operator

_LINE = 64  # bytes of a cache line, to which groups of columns are padded


def qmix(chosen: Tensor, state: Tensor, layers: Iterable[Any]) -> Tensor | None:
    """Q_tot [..] of the mixing network of `coterie.nets.mixers.QMIXMixer`.

        h1, h2 = relu(s W_h + b_h);    c, v = s W_d + b_d
        Q_tot = elu(Q |h1 W_1 + b_1| + c) |h2 W_2 + b_2| + relu(v) w + b

    Args:
        chosen: Q of the agents' actions [.., N].
        state: s [.., S].
        layers: Modules with `weight` [in, out] and `bias` [out]: W_h [S, 2H], W_1 [H, N E], W_2 [H, E], W_d [S, 2E]
            and w [E, 1].

    Returns:
        None if there is no kernel for the types, the shapes or the device.
    """
    parameters = [x for layer in layers for x in (layer.weight, layer.bias)]
    if not native.is_supported(chosen, state, *parameters) or state.shape[:-1] != chosen.shape[:-1]:
        return None
    return _OPERATOR(chosen, state, parameters, torch.is_grad_enabled())[0]


def _shapes(chosen: Tensor, state: Tensor, parameters: Sequence[Tensor]) -> tuple[int, int, int, int, int]:
    """Returns the numbers of rows, agents, inputs, hidden units of a hypernetwork, and units of the mixing layer."""
    hidden, units = parameters[4].shape
    return chosen.shape[:-1].numel(), chosen.shape[-1], state.shape[-1], hidden, units


def _saved(chosen: Tensor, state: Tensor, parameters: Sequence[Tensor], save: bool) -> Tensor:
    """Returns the tensor for what the backward pass needs: rows of `Mixing::columns` numbers in mixing.cpp."""
    rows, agents, _, hidden, units = _shapes(chosen, state, parameters)
    lanes = _LINE // chosen.element_size()
    hidden, units = ((size + lanes - 1) // lanes * lanes for size in (hidden, units))
    return chosen.new_empty((rows, 2 * hidden + (agents + 3) * units) if save else 0)


_LAYERS = ("hidden", "first", "second", "direct", "value")


def _check(
    operator: str, chosen: Tensor, state: Tensor, parameters: Sequence[Tensor], *others: native.Expected
) -> None:
    """Raises an error for arguments that a C function would read as something else."""
    floats = native.float_type(operator, chosen)
    if len(parameters) != 2 * len(_LAYERS) or parameters[4].ndim != 2 or not chosen.ndim or not state.ndim:
        raise ValueError(
            f"{operator}: expected agents' values [.., N], states [.., S], and weight and bias of five layers."
        )
    _, agents, inputs, hidden, units = _shapes(chosen, state, parameters)
    sizes = ((inputs, 2 * hidden), (hidden, agents * units), (hidden, units), (inputs, 2 * units), (units, 1))
    layers = zip(_LAYERS, parameters[::2], parameters[1::2], sizes, strict=True)
    native.check(
        operator,
        ("chosen", chosen, floats, chosen.shape),
        ("state", state, floats, (*chosen.shape[:-1], inputs)),
        *(
            expected
            for name, weight, bias, size in layers
            for expected in ((f"{name}.weight", weight, floats, size), (f"{name}.bias", bias, floats, size[1:]))
        ),
        *others,
    )
    if not hidden or not units:
        raise ValueError(f"{operator}: {hidden} hidden units and {units} mixing units. Both have to be at least 1.")


def _contiguous(*tensors: Tensor) -> list[Tensor]:
    return [x.contiguous() for x in tensors]


def _forward(chosen, state, parameters, save):
    _check("qmix", chosen, state, parameters)
    chosen, state, *parameters = _contiguous(chosen, state, *parameters)
    out, saved = chosen.new_empty(chosen.shape[:-1]), _saved(chosen, state, parameters, save)
    sizes, pointers = native.integers(*_shapes(chosen, state, parameters)), native.pointers(parameters)
    native.call("qmix_forward", chosen.dtype, sizes, chosen, state, pointers, out, saved if save else None)
    return out, saved


def _backward(grad, chosen, state, saved, parameters, needs_state):
    batch, floats = chosen.shape[:-1], chosen.dtype
    _check("qmix_backward", chosen, state, parameters, ("grad", grad, floats, batch))
    expected_saved = _saved(chosen, state, parameters, True).shape
    native.check("qmix_backward", ("saved", saved, floats, expected_saved))
    grad, chosen, state, *parameters = _contiguous(grad, chosen, state, *parameters)
    found = _empty_gradients(chosen, state, parameters, needs_state)
    chosen_grad, state_grad, *others = [x.data_ptr() for x in found]
    pointers = native.addresses(chosen_grad, state_grad if needs_state else None, *others)
    sizes = native.integers(*_shapes(chosen, state, parameters))
    inputs = (sizes, grad, chosen, state, saved, native.pointers(parameters))
    native.call("qmix_backward", chosen.dtype, *inputs, pointers)
    return found


def _empty_gradients(chosen: Tensor, state: Tensor, parameters: Sequence[Tensor], needs_state: bool) -> list[Tensor]:
    state_shape = state.shape if needs_state else (0,)
    return [chosen.new_empty(shape) for shape in (chosen.shape, state_shape, *(p.shape for p in parameters))]


def _fake_forward(chosen, state, parameters, save):
    return chosen.new_empty(chosen.shape[:-1]), _saved(chosen, state, parameters, save)


def _fake_backward(grad, chosen, state, saved, parameters, needs_state):
    return _empty_gradients(chosen, state, parameters, needs_state)


class _Qmix(torch.autograd.Function):
    """The operator with its gradient."""

    @staticmethod
    def forward(ctx, save, chosen, state, *parameters):  # type: ignore[override]
        out, saved = _OPERATOR.without_gradient(chosen, state, parameters, save)
        ctx.save_for_backward(chosen, state, saved, *parameters)
        ctx.mark_non_differentiable(saved)
        ctx.set_materialize_grads(False)
        return out, saved

    @staticmethod
    def backward(ctx, grad, _):  # type: ignore[override]
        chosen, state, saved, *parameters = ctx.saved_tensors
        if grad is None:
            return (None,) * (3 + len(parameters))
        needs_state = ctx.needs_input_grad[2]
        chosen_grad, state_grad, *found = _BACKWARD(grad, chosen, state, saved, parameters, needs_state)
        return None, chosen_grad, state_grad if needs_state else None, *found


def _with_gradient(chosen, state, parameters, save):
    return _Qmix.apply(save, chosen, state, *parameters)


_BACKWARD = Operator(
    "qmix_backward",
    "(Tensor grad, Tensor chosen, Tensor state, Tensor saved, Tensor[] parameters, bool needs_state) -> Tensor[]",
    _backward,
    _fake_backward,
)
_OPERATOR = Operator(
    "qmix", "(Tensor chosen, Tensor state, Tensor[] parameters, bool save) -> (Tensor, Tensor)", _forward, _fake_forward
)
_OPERATOR.set_gradient(_with_gradient)
