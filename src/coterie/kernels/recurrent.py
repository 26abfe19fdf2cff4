"""GRU and LSTM over sequences with resets as one operator each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.kernels import native
from coterie.kernels.native import Operator

_LINE = 64  # bytes of a cache line, to which the units are padded
_SAVED = {"gru": 4, "lstm": 6}
"""Vectors of hidden units per timestep that the backward pass needs."""


def gru(
    x: Tensor, first: Tensor, h: Tensor, weights: tuple[Tensor, Tensor], bias: Tensor, recurrent_bias: Tensor
) -> Tensor | None:
    """Hidden states [T, .., M, H] of a GRU, see `coterie.nets.recurrent`.

        r, z = sigmoid(x W + b + h' U);  n = tanh(x W_n + b_n + r (h' U_n + c));  h = n + z (h' - n)

    Args:
        x: Inputs [T, M, D], or [T, G, M, D] with G sets of parameters.
        first: [T, .., M] bool, True where the hidden state is reset before the timestep.
        h: Hidden state before the sequence [.., M, H].
        weights: W [.., D, 3H] and U [.., H, 3H], gates in the order r, z, n.
        bias: b [3H] or [G, 1, 3H].
        recurrent_bias: c [H] or [G, 1, H].

    Returns:
        None if there is no kernel for the types, the shapes or the device.
    """
    if not native.is_supported(x, h, *weights, bias, recurrent_bias) or not _fit(x, first, h, weights[0]):
        return None
    return _GRU(x, first, h, *weights, bias, recurrent_bias, torch.is_grad_enabled())[0]


def lstm(
    x: Tensor, first: Tensor, state: tuple[Tensor, Tensor], weights: tuple[Tensor, Tensor], bias: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Hidden states [T, .., M, H] of an LSTM and its last cell state [.., M, H], see `coterie.nets.recurrent`.

        i, f, o = sigmoid(x W + b + h' U);  g = tanh(..);  c = f c' + i g;  h = o tanh(c)

    Args:
        x: Inputs [T, M, D], or [T, G, M, D] with G sets of parameters.
        first: [T, .., M] bool, True where the hidden state is reset before the timestep.
        state: h and c before the sequence [.., M, H].
        weights: W [.., D, 4H] and U [.., H, 4H], gates in the order i, f, o, g.
        bias: b [4H] or [G, 1, 4H].

    Returns:
        None if there is no kernel for the types or the device.
    """
    if not native.is_supported(x, *state, *weights, bias) or not _fit(x, first, state[0], weights[0]):
        return None
    out, last_c, _ = _LSTM(x, first, *state, *weights, bias, torch.is_grad_enabled())
    return out, last_c


def _fit(x: Tensor, first: Tensor, h: Tensor, weight: Tensor) -> bool:
    """True if the shapes are those of a sequence, so that the kernel stays within the tensors' memory."""
    rows = x.shape[1:-1]
    return (
        first.shape == x.shape[:-1]
        and h.shape[:-1] == rows
        and (x.shape[-1], rows[:-1]) == (weight.shape[-2], weight.shape[:-2])
    )


def _sizes(x: Tensor, h: Tensor):
    return native.integers(len(x), 1 if x.ndim == 3 else x.shape[1], *x.shape[-2:], h.shape[-1])


def _saved(kind: str, x: Tensor, h: Tensor, save: bool) -> Tensor:
    """Returns the tensor for what the backward pass needs."""
    lanes = _LINE // x.element_size()
    units = (h.shape[-1] + lanes - 1) // lanes * lanes
    return x.new_empty((*x.shape[:-1], _SAVED[kind] * units) if save else 0)


def _contiguous(*tensors: Tensor) -> list[Tensor]:
    return [x.contiguous() for x in tensors]


def _check_parameters(
    operator: str, weight: Tensor, recurrent: Tensor, bias: Tensor, extra: Tensor | None, gates: int
) -> None:
    """Raises an error for parameters that a C function would read as something else."""
    if recurrent.ndim not in (2, 3) or weight.ndim != recurrent.ndim or not recurrent.shape[-2]:
        raise ValueError(
            f"{operator}: weight is {list(weight.shape)} and recurrent {list(recurrent.shape)}, expected "
            f"[D, {gates}H] and [H, {gates}H], or the same with an axis of sets before."
        )
    floats, sets, units = native.float_type(operator, weight), recurrent.shape[:-2], recurrent.shape[-2]
    between = (1,) if sets else ()
    native.check(
        operator,
        ("weight", weight, floats, (*sets, weight.shape[-2], gates * units)),
        ("recurrent", recurrent, floats, (*sets, units, gates * units)),
        ("bias", bias, floats, (*sets, *between, gates * units)),
        ("extra", extra, floats, (*sets, *between, units)),
    )


def _check_sequence(
    operator: str, x: Tensor, first: Tensor, states: Sequence[Tensor], weight: Tensor, units: int
) -> None:
    """Raises an error for a sequence, or states before it, that a C function would read as something else."""
    floats, sets = weight.dtype, weight.shape[:-2]
    if x.ndim != 3 + len(sets):
        raise ValueError(f"{operator}: x is {list(x.shape)}, expected [T, {'G, ' if sets else ''}M, D].")
    rows = (*sets, x.shape[-2])
    native.check(
        operator,
        ("x", x, floats, (len(x), *rows, weight.shape[-2])),
        ("first", first, torch.bool, (len(x), *rows)),
        *((name, state, floats, (*rows, units)) for name, state in zip("hc", states, strict=False)),
    )


def _prepare_gru(weight, recurrent, bias, extra, save):
    """Returns the operator as a function of x, first and h, for constant parameters."""
    _check_parameters("gru", weight, recurrent, bias, extra, gates=3)
    parameters = _contiguous(weight, recurrent, bias, extra)
    units = recurrent.shape[-2]

    def gru(x: Tensor, first: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        _check_sequence("gru", x, first, (h,), weight, units)
        x, first, h = x.contiguous(), first.contiguous(), h.contiguous()
        out, saved = x.new_empty((*x.shape[:-1], units)), _saved("gru", x, h, save)
        native.call(
            "gru_forward", x.dtype, _sizes(x, h), x, first, h, None, *parameters, out, None, saved if save else None
        )
        return out, saved

    return gru


def _gru(x, first, h, *constants):
    return _prepare_gru(*constants)(x, first, h)


def _lstm(x, first, h, c, weight, recurrent, bias, save):
    _check_parameters("lstm", weight, recurrent, bias, None, gates=4)
    _check_sequence("lstm", x, first, (h, c), weight, recurrent.shape[-2])
    x, first, h, c, weight, recurrent, bias = _contiguous(x, first, h, c, weight, recurrent, bias)
    out, last_c, saved = x.new_empty(*x.shape[:-1], h.shape[-1]), torch.empty_like(c), _saved("lstm", x, h, save)
    parameters = (weight, recurrent, bias, None)
    native.call(
        "lstm_forward", x.dtype, _sizes(x, h), x, first, h, c, *parameters, out, last_c, saved if save else None
    )
    return out, last_c, saved


def _check_backward(kind: str, x: Tensor, first: Tensor, h: Tensor, parameters: Sequence[Tensor], *of_out) -> None:
    """Raises an error for arguments that a C function of a gradient would read as something else.

    Args:
        kind: `gru` or `lstm`.
        x: As in the forward pass; so are `first`, `h` and `parameters`.
        *of_out: The results `out` and `saved` of the forward pass, and the gradients of `out` and of the last c.
    """
    (weight, recurrent, bias, *extra), (out, saved, grad, c_grad) = parameters, of_out
    operator, units = f"{kind}_backward", recurrent.shape[-2] if recurrent.ndim > 1 else 0
    gates = 3 if kind == "gru" else 4
    _check_parameters(operator, weight, recurrent, bias, extra[0] if extra else None, gates)
    _check_sequence(operator, x, first, (h,), weight, units)
    shape = (*x.shape[:-1], units)
    native.check(
        operator,
        ("out", out, x.dtype, shape),
        ("saved", saved, x.dtype, _saved(kind, x, h, True).shape),
        ("grad", grad, x.dtype, shape),
        ("c_grad", c_grad, x.dtype, h.shape),
    )


def _gru_backward(x, first, h, weight, recurrent, bias, extra, out, saved, grad, c_grad, needs_x):
    _check_backward("gru", x, first, h, (weight, recurrent, bias, extra), out, saved, grad, c_grad)
    x, first, h, weight, recurrent, bias, extra, grad = _contiguous(x, first, h, weight, recurrent, bias, extra, grad)
    out, saved = _contiguous(out, saved)
    found = [x.new_empty(p.shape) for p in (x, h, weight, recurrent, bias, extra)]
    x_grad, h_grad, *others = [g.data_ptr() for g in found]
    pointers = native.addresses(x_grad if needs_x else None, h_grad, None, *others)
    inputs = (_sizes(x, h), x, first, h, weight, recurrent, bias, extra)
    native.call("gru_backward", x.dtype, *inputs, out, saved, grad, None, pointers)
    return found


def _lstm_backward(x, first, h, weight, recurrent, bias, out, saved, grad, c_grad, needs_x):
    c_grad = torch.zeros_like(h) if c_grad is None else c_grad
    _check_backward("lstm", x, first, h, (weight, recurrent, bias), out, saved, grad, c_grad)
    x, first, h, weight, recurrent, bias, grad, c_grad = _contiguous(x, first, h, weight, recurrent, bias, grad, c_grad)
    out, saved = _contiguous(out, saved)
    found = [x.new_empty(p.shape) for p in (x, h, h, weight, recurrent, bias)]
    x_grad, *others = [g.data_ptr() for g in found]
    pointers = native.addresses(x_grad if needs_x else None, *others, None)
    inputs = (_sizes(x, h), x, first, h, weight, recurrent, bias, None)
    native.call("lstm_backward", x.dtype, *inputs, out, saved, grad, c_grad, pointers)
    return found


class _Gru(torch.autograd.Function):
    """The operator with its gradient."""

    @staticmethod
    def forward(ctx, x, first, h, weight, recurrent, bias, extra, save):  # type: ignore[override]
        out, saved = _GRU.without_gradient(x, first, h, weight, recurrent, bias, extra, save)
        ctx.save_for_backward(x, first, h, weight, recurrent, bias, extra, out, saved)
        ctx.mark_non_differentiable(saved)
        ctx.set_materialize_grads(False)  # `saved` is large
        return out, saved

    @staticmethod
    def backward(ctx, grad, _):  # type: ignore[override]
        if grad is None:
            return (None,) * 8
        needs_x = ctx.needs_input_grad[0]
        x, h, *parameters = _GRU_BACKWARD(*ctx.saved_tensors, grad, None, needs_x)
        return x if needs_x else None, None, h, *parameters, None


class _Lstm(torch.autograd.Function):
    """The operator with its gradient."""

    @staticmethod
    def forward(ctx, x, first, h, c, weight, recurrent, bias, save):  # type: ignore[override]
        out, last_c, saved = _LSTM.without_gradient(x, first, h, c, weight, recurrent, bias, save)
        ctx.save_for_backward(x, first, h, weight, recurrent, bias, out, saved)
        ctx.mark_non_differentiable(saved)
        ctx.set_materialize_grads(False)  # `saved` is large
        return out, last_c, saved

    @staticmethod
    def backward(ctx, grad, c_grad, _):  # type: ignore[override]
        *_, out, _ = ctx.saved_tensors
        grad = torch.zeros_like(out) if grad is None else grad
        needs_x = ctx.needs_input_grad[0]
        x, h, c, *parameters = _LSTM_BACKWARD(*ctx.saved_tensors, grad, c_grad, needs_x)
        return x if needs_x else None, None, h, c, *parameters, None


def _fake_gru(x, first, h, weight, recurrent, bias, extra, save):
    return x.new_empty(*x.shape[:-1], h.shape[-1]), _saved("gru", x, h, save)


def _fake_lstm(x, first, h, c, weight, recurrent, bias, save):
    return x.new_empty(*x.shape[:-1], h.shape[-1]), x.new_empty(h.shape), _saved("lstm", x, h, save)


def _fake_gru_backward(x, first, h, weight, recurrent, bias, extra, out, saved, grad, c_grad, needs_x):
    return [x.new_empty(p.shape) for p in (x, h, weight, recurrent, bias, extra)]


def _fake_lstm_backward(x, first, h, weight, recurrent, bias, out, saved, grad, c_grad, needs_x):
    return [x.new_empty(p.shape) for p in (x, h, h, weight, recurrent, bias)]


_GRADIENT = "Tensor out, Tensor saved, Tensor grad, Tensor? c_grad, bool needs_x) -> Tensor[]"
_SEQUENCE = "(Tensor x, Tensor first, Tensor h, "
_PARAMETERS = "Tensor weight, Tensor recurrent, Tensor bias, "
_GRU_BACKWARD = Operator(
    "gru_backward", f"{_SEQUENCE}{_PARAMETERS}Tensor extra, {_GRADIENT}", _gru_backward, _fake_gru_backward
)
_LSTM_BACKWARD = Operator("lstm_backward", f"{_SEQUENCE}{_PARAMETERS}{_GRADIENT}", _lstm_backward, _fake_lstm_backward)
_GRU = Operator(
    "gru",
    f"{_SEQUENCE}{_PARAMETERS}Tensor extra, bool save) -> (Tensor, Tensor)",
    _gru,
    _fake_gru,
    prepare=(3, _prepare_gru),
)
_LSTM = Operator("lstm", f"{_SEQUENCE}Tensor c, {_PARAMETERS}bool save) -> (Tensor, Tensor, Tensor)", _lstm, _fake_lstm)
_GRU.set_gradient(_Gru.apply)
_LSTM.set_gradient(_Lstm.apply)
