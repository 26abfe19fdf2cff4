"""Traces: the operations of a function of tensors, recorded once and repeated without the Python code around them.

A small operation takes about a microsecond. The Python code of modules, dictionaries and branches around it takes
several. A trace is straight-line Python code that calls the function's operations one after another. It corresponds to
a CUDA graph on a GPU and has the same condition: only the content of tensors differs between calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.core.device_constants import as_tensors
from coterie.core.tree import Tree, tree_leaves, tree_map
from coterie.kernels.native import direct_call, preparation

_OF_UNKNOWN_SHAPE = frozenset({"nonzero", "nonzero_numpy", "masked_select", "index"})
"""Operations with results whose shapes may depend on numbers. So does `index` by a mask."""


Trace = Callable[[], Callable[..., Tree]]
"""A traced function. Called, it executes the operations that do not depend on inputs, and returns a function of the
inputs that executes the others. Its inputs must have the structure, shapes and types of those of the traced call.
"""


class CannotTraceError(Exception):
    """The function cannot be repeated without its Python code. The message is the reason."""


def trace(function: Callable[..., Tree], *inputs: Tree) -> tuple[Trace, Tree]:
    """Calls a function and traces its operations.

    Args:
        function: Depends on its inputs, and on tensors that are changed in place only; takes the same branches in all
            calls.
        *inputs: Dictionaries, tuples, lists and dataclasses of tensors.

    Returns:
        The trace, and the results of this call.

    Raises:
        CannotTraceError: If the function reads tensors on the host, draws random numbers, or changes its inputs or
            constants.
    """
    # An object that the caller passes twice may be two in other calls, so that every input gets an object of its own.
    own = tree_map(torch.Tensor.detach, inputs)
    tracer = _Tracer(own)
    with as_tensors(), tracer:
        results = function(*own)
    return tracer.compiled(results), results


def equal(one: Tree, other: Tree) -> bool:
    """True if two trees hold the same tensors bit by bit, in the same memory layout. NaN equals NaN."""
    return all(_same(x, y) for x, y in zip(tree_leaves(one), tree_leaves(other), strict=True))


def _same(x: Tensor, y: Tensor) -> bool:
    if x.shape != y.shape or x.dtype is not y.dtype or x.stride() != y.stride():
        return False
    return bool(((x == y) | ((x != x) & (y != y))).all())


class _Tracer(TorchDispatchMode):
    """While it is active, operations are executed and written down as lines of a Python function.

    Args:
        inputs: The arguments `i0`, `i1`, ... of the function, all of whose tensors are different objects.
    """

    def __init__(self, inputs: tuple[Tree, ...]):
        super().__init__()
        self._parameters = [f"i{k}" for k in range(len(inputs))]
        self._names: dict[int, str] = {}  # of the tensors and prepared functions so far, by identity
        self._fixed: set[int] = set()  # identities of results that do not depend on inputs
        self._fixed_lines: list[str] = []
        self._lines: list[str] = []
        self._globals: dict[str, Any] = {}
        self._kept: list[Any] = [inputs]  # so that no other object gets the identity of one of them
        for name, tree in zip(self._parameters, inputs, strict=True):
            self._name_leaves(name, tree)
        self._own: set[int] = set()  # addresses of memory that may be changed: of results that depend on inputs

    def _name_leaves(self, path: str, node: Any) -> None:
        if isinstance(node, Tensor):
            self._names[id(node)] = path
        elif isinstance(node, dict):
            for key, value in node.items():
                self._name_leaves(f"{path}[{key!r}]", value)
        elif isinstance(node, tuple | list):
            for index, value in enumerate(node):
                self._name_leaves(f"{path}[{index}]", value)
        elif is_dataclass(node):
            for field in fields(node):
                self._name_leaves(f"{path}.{field.name}", getattr(node, field.name))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Returns False, so that PyTorch does not import its compiler, which takes a second."""
        return False

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in _OF_UNKNOWN_SHAPE:
            raise CannotTraceError(f"the shape of the result of {func} is known on the host only")
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise CannotTraceError(f"{func} draws random numbers, which are to be inputs")
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        is_fixed = all(id(x) in self._fixed or id(x) not in self._names for x in tensors)
        is_mutable = func._schema.is_mutable
        if is_mutable and _address(args[0]) not in self._own:
            raise CannotTraceError(f"{func} changes an input or a constant")
        changed = [args[0].clone()] if is_mutable else []
        out = func(*args, **kwargs)
        if not all(isinstance(x, Tensor) for x in tree_leaves(out)):
            raise CannotTraceError(f"it reads the result of {func} on the host")
        if not is_mutable and isinstance(out, Tensor) and id(out) in self._names:
            return out  # one of its arguments
        if not is_fixed:
            self._own |= {_address(x) for x in tree_leaves(out)} - {_address(x) for x in tensors}
        call = self._prepared_call(func, args) or _quick_call(func, args, kwargs)
        if not _has_result((call[0], [*changed, *call[1][len(changed) :]], call[2]), out):
            call = func, args, kwargs
        words = [self._source(x) for x in call[1]] + [f"{name}={self._source(x)}" for name, x in call[2].items()]
        line = f"{self._source(call[0])}({', '.join(words)})"
        self._kept += [args, kwargs, out, call]
        if not is_mutable:
            line = f"{self._target(out, is_fixed)} = {line}"
        (self._fixed_lines if is_fixed else self._lines).append(line)
        return out

    def _prepared_call(self, func: OpOverload, args: Any) -> _Call | None:
        """Returns a call of an operator whose last arguments, its parameters, are prepared once per trace.

        None if the operator has no such preparation, or if the parameters depend on inputs.
        """
        found = preparation(func)
        if found is None:
            return None
        count, prepare = found
        parameters = args[count:]
        tensors = [x for x in tree_leaves(list(parameters)) if isinstance(x, Tensor)]
        if any(id(x) in self._names and id(x) not in self._fixed for x in tensors):
            return None
        prepared = prepare(*parameters)
        self._kept.append(prepared)
        words = [self._source(x) for x in parameters]
        self._fixed_lines.append(f"{self._target(prepared, True)} = {self._global(prepare)}({', '.join(words)})")
        return prepared, args[:count], {}

    def _target(self, out: Any, is_fixed: bool) -> str:
        """Names the results of an operation."""
        if isinstance(out, tuple | list):
            return f"[{', '.join(self._target(x, is_fixed) for x in out)}]"
        self._names[id(out)] = f"x{len(self._names)}"
        if is_fixed:
            self._fixed.add(id(out))
        return self._names[id(out)]

    def _source(self, value: Any) -> str:
        """Returns the Python expression of an argument or a result."""
        if value is None or isinstance(value, bool | int | str):
            return repr(value)
        if id(value) in self._names:
            return self._names[id(value)]
        if isinstance(value, list):
            return f"[{', '.join(self._source(x) for x in value)}]"
        if isinstance(value, tuple):
            return f"({''.join(self._source(x) + ', ' for x in value)})"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{key!r}: {self._source(x)}' for key, x in value.items())}}}"
        if is_dataclass(value) and not isinstance(value, type):
            values = [f"{field.name}={self._source(getattr(value, field.name))}" for field in fields(value)]
            return f"{self._global(type(value))}({', '.join(values)})"
        return self._global(value)

    def _global(self, value: Any) -> str:
        """Returns the name of a constant: a parameter of a network, a type, an operation."""
        name = f"g{id(value)}"
        self._globals[name] = value
        return name

    def compiled(self, results: Tree) -> Trace:
        """Returns the trace, with results in a tree such as `results`."""
        lines = [
            "def start():",
            *(f"    {line}" for line in self._fixed_lines),
            f"    def repeat({', '.join(self._parameters)}):",
            *(f"        {line}" for line in self._lines),
            f"        return {self._source(results)}",
            "    return repeat",
        ]
        exec(compile("\n".join(lines), "<trace>", "exec"), self._globals)
        return self._globals["start"]


def _address(x: Tensor) -> int:
    """Returns the address of the memory that a tensor is in, or is a view of."""
    return x.untyped_storage().data_ptr()


_Call = tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]
"""A function and its arguments."""


def _quick_call(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> _Call:
    """Returns a call that probably does the same as an operation, in less time than PyTorch's table of operations."""
    name = func.overloadpacket.__name__
    if func.namespace == "coterie":
        return direct_call(func), args, kwargs
    if name == "_to_copy" and list(kwargs) == ["dtype"] and kwargs["dtype"] is not args[0].dtype:
        return Tensor.to, (args[0], kwargs["dtype"]), {}
    if name == "slice" and len(args) == 4:
        return torch.narrow, (*args[:3], args[3] - args[2]), {}
    return getattr(torch, name, None) or getattr(Tensor, name, func), args, kwargs


def _has_result(call: _Call, expected: Any) -> bool:
    """True if a call has the expected result."""
    function, args, kwargs = call
    try:
        return equal(function(*args, **kwargs), expected)
    except (TypeError, ValueError, RuntimeError):
        return False
