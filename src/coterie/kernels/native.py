"""The compiled library, calls of its C functions on tensors, and operators of `torch.ops.coterie` that consist of them.

Operators are called without PyTorch's dispatcher where nothing traces them.
"""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from coterie.core.terminal import message_stream, print_line
from coterie.kernels.build import KernelsUnavailableError, available_library

_SUFFIXES = {torch.float32: "f32", torch.float64: "f64"}

_transformation = getattr(torch._C, "_functorch").maybe_current_level  # noqa: B009 - not in PyTorch's type stubs

_library: ctypes.CDLL | None = None
_functions: dict[tuple[str, torch.dtype], Any] = {}


class _Threads(threading.local):
    """Number of threads that kernels use in calls from one thread of Python, set by `threads`."""

    count: int | None = None


_threads = _Threads()


def load() -> ctypes.CDLL:
    """Returns the library, which is compiled if necessary.

    Raises:
        KernelsUnavailableError: If it cannot be compiled or loaded.
    """
    global _library
    if _library is None:
        path = available_library(lambda: print_line("compiling the kernels, once", message_stream()))
        try:
            _library = ctypes.CDLL(str(path))
        except OSError as error:
            raise KernelsUnavailableError(f"cannot load {path}: {error}") from error
    return _library


def is_supported(*tensors: Tensor) -> bool:
    """Returns True if kernels can read the tensors: all on the CPU, of the same floating-point type.

    Within transformations such as `torch.vmap`, for which the operators have no rules, it returns False.
    """
    if not torch.compiler.is_compiling() and _transformation() is not None:
        return False
    dtype = tensors[0].dtype
    if dtype not in _SUFFIXES:
        return False
    for x in tensors:  # noqa: SIM110  # a generator expression would take twice as long
        if not x.is_cpu or x.dtype is not dtype:
            return False
    return True


def float_type(operator: str, x: Tensor) -> torch.dtype:
    """Returns the type of a tensor, float32 or float64.

    Raises:
        TypeError: For another type, for which there is no C function.
    """
    if x.dtype not in _SUFFIXES:
        raise TypeError(f"{operator}: there is no kernel for {x.dtype}. Use float32 or float64.")
    return x.dtype


Expected = tuple[str, Tensor | None, torch.dtype, Sequence[int]]
"""Name of an argument, the tensor or None, and the type and shape that a C function reads."""


def check(operator: str, *arguments: Expected) -> None:
    """Raises an error for the first tensor that a C function would read as something else. None fits.

    Raises:
        TypeError: For another type or device.
        ValueError: For another shape.
    """
    for name, x, dtype, shape in arguments:
        if x is None or (x.dtype is dtype and x.is_cpu and x.shape == shape):
            continue
        expected = f"expected {dtype} {list(shape)} on cpu"
        kind = ValueError if x.dtype is dtype and x.is_cpu else TypeError
        raise kind(f"{operator}: {name} is {x.dtype} {list(x.shape)} on {x.device}, {expected}.")


def call(name: str, dtype: torch.dtype, *arguments: Tensor | array[Any] | None) -> None:
    """Calls the C function `coterie_<name>_<dtype>` with pointers and the number of threads.

    Args:
        name: Name of the function.
        dtype: Precision, float32 or float64.
        *arguments: Contiguous tensors, or arrays of `integers`, `reals` or `pointers`; None for a null pointer.
    """
    key = (name, dtype)
    if key not in _functions:
        function = getattr(load(), f"coterie_{name}_{_SUFFIXES[dtype]}")
        function.argtypes, function.restype = [ctypes.c_void_p] * len(arguments) + [ctypes.c_int], None
        _functions[key] = function
    plain = [x.data_ptr() if isinstance(x, Tensor) else None if x is None else x.buffer_info()[0] for x in arguments]
    _functions[key](*plain, num_threads())


def num_threads() -> int:
    """Returns the number of threads that kernels use: those of PyTorch, unless `threads` sets another number."""
    return torch.get_num_threads() if _threads.count is None else _threads.count


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Context manager: kernels use `count` threads, however many PyTorch uses."""
    before, _threads.count = _threads.count, count
    try:
        yield
    finally:
        _threads.count = before


@contextmanager
def only_kernels_in_parallel() -> Iterator[None]:
    """Context manager: PyTorch uses one thread, and kernels as many as before.

    Between kernels, operations on some ten thousand numbers take less time than waking another thread of PyTorch, which
    then takes time from the kernels' threads.
    """
    by_torch, by_kernels = torch.get_num_threads(), num_threads()
    torch.set_num_threads(1)
    try:
        with threads(by_kernels):
            yield
    finally:
        torch.set_num_threads(by_torch)


def integers(*values: int) -> array[int]:
    """Returns an array of int64_t."""
    return array("q", values)


def reals(*values: float) -> array[float]:
    """Returns an array of double."""
    return array("d", values)


def pointers(tensors: Sequence[Tensor]) -> array[int]:
    """Returns an array of the tensors' addresses."""
    return array("Q", [x.data_ptr() for x in tensors])


def addresses(*values: Tensor | int | None) -> array[int]:
    """Returns an array of addresses, also those of tensors; None stands for a null pointer."""
    return array("Q", [x.data_ptr() if isinstance(x, Tensor) else x or 0 for x in values])


_PLAIN = (Tensor, Parameter)

Preparation = tuple[int, Callable[..., Callable[..., Any]]]
"""Number k of arguments that vary between calls, the first ones, and a function of the others. It returns a function of
the first k that computes the operator until one of the others changes."""

_forward_functions: dict[Any, Callable[..., Any]] = {}
"""Functions without a gradient of all operators, by their entries in PyTorch's dispatcher."""
_preparations: dict[Any, Preparation] = {}


def direct_call(operator: Any) -> Callable[..., Any]:
    """Returns the function that computes an operator of `torch.ops.coterie` without PyTorch's dispatcher."""
    return _forward_functions[operator]


def preparation(operator: Any) -> Preparation | None:
    """Returns the preparation of an operator of `torch.ops.coterie` that is called often with the same parameters."""
    return _preparations.get(operator)


class Operator:
    """A function of tensors on the CPU, registered with PyTorch.

    Autograd, `torch.compile`, `torch.export` and fake tensors need PyTorch's dispatcher, which takes about 0.1 ms for a
    function written in Python, often longer than the function itself. Everything else calls the function directly.
    """

    def __init__(
        self,
        name: str,
        signature: str,
        forward: Callable[..., Any],
        fake: Callable[..., Any],
        prepare: Preparation | None = None,
    ) -> None:
        """
        Args:
            name: Name in `torch.ops.coterie`.
            signature: Arguments, a tensor first, and results, in the language of `torch.library.define`.
            forward: Computes the results, without a gradient.
            fake: Returns empty tensors of the results' shapes.
            prepare: Used by traces; None for none.
        """
        qualified = f"coterie::{name}"
        torch.library.define(qualified, signature)
        torch.library.impl(qualified, "CPU", forward)
        torch.library.register_fake(qualified, fake)
        self._name, self._forward = qualified, forward
        self._registered = getattr(torch.ops.coterie, name).default
        _forward_functions[self._registered] = forward
        if prepare is not None:
            _preparations[self._registered] = prepare
        self._differentiable: Callable[..., Any] | None = None

    def set_gradient(self, differentiable: Callable[..., Any]) -> None:
        """Sets the function that is called where gradients are recorded; it calls `without_gradient`."""
        torch.library.impl(self._name, "Autograd", differentiable)
        self._differentiable = differentiable

    def __call__(self, *args: Any) -> Any:
        """Returns the results, with a gradient if one is recorded."""
        if is_traced(args[0]):
            return self._registered(*args)
        if self._differentiable is not None and torch.is_grad_enabled():
            return self._differentiable(*args)
        return self._forward(*args)

    def without_gradient(self, *args: Any) -> Any:
        """Returns the results within a function of autograd, which records the gradient itself."""
        if not is_traced(args[0]):
            return self._forward(*args)
        with torch._C._AutoDispatchBelowAutograd():
            return self._registered(*args)


def is_traced(x: Tensor) -> bool:
    """True if the call is recorded, transformed or replaced by something that sees operators only."""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or type(x) not in _PLAIN
    )
