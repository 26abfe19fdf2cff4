"""Gradient norm, clipping and Adam over one flat tensor of parameters, in place."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.kernels import native
from coterie.kernels.native import Operator


def adam_step(
    flat: Tensor,
    gradient: Tensor,
    state: dict[str, Tensor],
    max_grad_norm: float | None,
    *,
    lr: Tensor,
    weight_decay: float,
    eps: float,
    rectify: bool = False,
) -> Tensor | None:
    """Clips a gradient to a norm and takes one step of Adam with beta 0.9 and 0.999.

    Args:
        flat: Parameters [P].
        gradient: Their gradient [P].
        state: `step` [], `exp_avg` and `exp_avg_sq` [P], as `torch.optim.Adam` keeps them.
        max_grad_norm: Largest norm of the gradient; None for no clipping.
        lr: Learning rate, float64 [].
        weight_decay: Factor of the parameters that is added to the clipped gradient.
        eps: Added to the denominator.
        rectify: Take a step of RAdam (Liu et al. 2020, algorithm 2), as `torch.optim.RAdam` does: its size is rectified
            while the second moments are uncertain.

    Returns:
        The norm of the gradient before clipping []; None if there is no kernel for the type or the device.
    """
    if not native.is_supported(flat, gradient):
        return None
    state["step"] += 1
    norm = flat.new_empty(())
    _ADAM(
        *(flat, gradient, state["exp_avg"], state["exp_avg_sq"], norm, lr, state["step"]),
        [0.9, 0.999, eps, weight_decay, max_grad_norm or 0.0, float(rectify)],
    )
    return norm


def _step(parameter, grad, average, square, norm, lr, step, options):
    count, floats = (parameter.numel(),), native.float_type("adam_", parameter)
    flat = {"parameter": parameter, "grad": grad, "average": average, "square": square}
    native.check("adam_", *((name, x, floats, count) for name, x in flat.items()), ("norm", norm, floats, ()))
    native.check("adam_", ("lr", lr, torch.float64, ()), ("step", step, torch.float32, ()))
    if len(options) != 6:
        raise ValueError(f"adam_: {len(options)} options, expected 6: betas, eps, weight decay, norm, rectification.")
    for name, x in flat.items():
        if not x.is_contiguous():
            raise ValueError(f"adam_: {name} is changed in place and has to be contiguous, but has a stride.")
    sizes = native.integers(parameter.numel())
    arguments = (sizes, native.reals(*options), lr, step, parameter, grad, average, square, norm)
    native.call("adam", parameter.dtype, *arguments)


def _fake_step(parameter, grad, average, square, norm, lr, step, options):
    return None


_ADAM = Operator(
    "adam_",
    "(Tensor(a!) parameter, Tensor(b!) grad, Tensor(c!) average, Tensor(d!) square, Tensor(e!) norm, Tensor lr, "
    "Tensor step, float[] options) -> ()",
    _step,
    _fake_step,
)
