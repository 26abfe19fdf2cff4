"""Traces: the operations of a function of tensors, recorded once and repeated without the Python code around them.

A small operation takes about a microsecond. The Python code of modules, dictionaries and branches around it takes
several, and so does recording gradients. A trace is straight-line Python code that calls the function's operations one
after another, those of its gradients as well. It corresponds to a CUDA graph on a GPU and has the same condition: only
the content of tensors differs between calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.core.device_constants import as_tensors
from coterie.core.tree import Tree, tree_leaves, tree_map
from coterie.kernels.native import direct_call, preparation

_BY_INDEX = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})
"""Operations at places that are indices or a mask. With a mask, their shapes depend on numbers."""

_HOST_READS = (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__)
"""Functions that read tensors on the host without an operation."""

_SAME = frozenset({"detach", "alias"})
"""Operations that return a tensor as it is."""


Trace = Callable[[], Callable[..., Tree]]
"""A traced function. Called, it executes the operations that do not depend on inputs, and returns a function of the
inputs that executes the others. Its inputs must have the structure, shapes and types of those of the traced call.
"""


class CannotTraceError(Exception):
    """The function cannot be repeated without its Python code.

    Args:
        reason: The reason, which is the message.
        results: Results of the call that was to be traced, which was completed.
    """

    def __init__(self, reason: str, results: Tree):
        super().__init__(reason)
        self.results = results


def trace(
    function: Callable[..., Tree],
    *inputs: Tree,
    changes: Sequence[Tensor] | None = None,
    generators: Sequence[torch.Generator] = (),
) -> tuple[Trace, Tree]:
    """Calls a function and traces its operations.

    Args:
        function: Depends on its inputs, and on tensors that are changed in place only; takes the same branches in all
            calls.
        *inputs: Dictionaries, tuples, lists and dataclasses of tensors.
        changes: Tensors that the function may change, for example parameters by a gradient step. Such a function is
            repeated without a new start, so that only views of other tensors are made once. None: it changes nothing.
        generators: Generators that it may draw from.

    Returns:
        The trace, and the results of this call.

    Raises:
        CannotTraceError: If the function reads tensors on the host, draws random numbers from other generators, or
            changes its inputs or other tensors.
    """
    # An object that the caller passes twice may be two in other calls, so that every input gets an object of its own.
    own = tree_map(torch.Tensor.detach, inputs)
    tracer = _Tracer(own, changes, generators)
    with as_tensors(), tracer, _HostReads(tracer):
        results = function(*own)
    if tracer.obstacle is not None:
        raise CannotTraceError(tracer.obstacle, results)
    return tracer.compiled(results), results


def equal(one: Tree, other: Tree) -> bool:
    """True if two trees hold the same tensors bit by bit, in the same memory layout. NaN equals NaN."""
    leaves, others = tree_leaves(one), tree_leaves(other)
    return len(leaves) == len(others) and all(_same(x, y) for x, y in zip(leaves, others, strict=True))


def _same(x: Tensor, y: Tensor) -> bool:
    if x.shape != y.shape or x.dtype is not y.dtype or x.stride() != y.stride():
        return False
    return bool(((x == y) | ((x != x) & (y != y))).all())


_Call = tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]
"""A function and its arguments."""


@dataclass(frozen=True)
class _Operation:
    """An executed operation.

    Attributes:
        func: The operation.
        call: A call that has its results.
        out: Its results.
        changed: Addresses of the memory that it changes.
        is_random: True if it draws random numbers.
    """

    func: OpOverload
    call: _Call
    out: Any
    changed: frozenset[int]
    is_random: bool

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors among the arguments."""
        return _tensors(self.call[1:])

    @property
    def results(self) -> list[Tensor]:
        """Tensors among the results."""
        return _tensors(self.out)


class _Tracer(TorchDispatchMode):
    """While it is active, operations are executed and recorded.

    Args:
        inputs: The arguments `i0`, `i1`, ... of the function, all of whose tensors are different objects.
        changes: See `trace`.
        generators: See `trace`.

    Attributes:
        obstacle: The first reason for which the function cannot be traced; None if there is none.
    """

    def __init__(
        self, inputs: tuple[Tree, ...], changes: Sequence[Tensor] | None, generators: Sequence[torch.Generator]
    ):
        super().__init__()
        self._generators, self._starts_often = generators, changes is None
        self._parameters = [f"i{k}" for k in range(len(inputs))]
        self._inputs: dict[int, str] = {}  # expressions of inputs by identity
        for name, tree in zip(self._parameters, inputs, strict=True):
            self._name_leaves(name, tree)
        self._operations: list[_Operation] = []
        self._kept: list[Any] = [inputs]  # so that no other object gets the identity of one of them
        self._known = set(self._inputs)  # identities of inputs and results
        self._own: set[int] = set()  # addresses of the memory of results
        self._changeable = {_address(x) for x in changes or ()}
        self.obstacle: str | None = None

    def _name_leaves(self, path: str, node: Any) -> None:
        if isinstance(node, Tensor):
            self._inputs[id(node)] = path
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
        if self.obstacle is not None:
            return func(*args, **kwargs)
        tensors, is_random = _tensors((args, kwargs)), torch.Tag.nondeterministic_seeded in func.tags
        written = _written(func, args, kwargs)
        self.obstacle = self._obstacle(func, args, kwargs, tensors, written, is_random)
        before = [x.clone() for x in written]
        out = func(*args, **kwargs)
        if not all(isinstance(x, Tensor) for x in tree_leaves(out)):
            self.obstacle = self.obstacle or f"it reads the result of {func} on the host"
        if self.obstacle is not None:
            return out
        self._kept += [args, kwargs, out]
        if not written and isinstance(out, Tensor) and id(out) in self._known:
            return out  # one of its arguments
        call = func, args, kwargs
        if not is_random and len(written) <= 1 and (not written or written[0] is args[0]):
            quick = _quick_call(func, args, kwargs)
            if func.namespace == "coterie" or _has_result(
                (quick[0], [*before, *quick[1][len(before) :]], quick[2]), out
            ):
                call = quick
        elif func.namespace == "coterie":
            call = direct_call(func), args, kwargs
        self._kept.append(call)
        results = [x for x in _tensors(out) if id(x) not in self._known]
        if not written:
            self._known |= {id(x) for x in results}
            self._own |= {_address(x) for x in results} - {_address(x) for x in tensors}
        self._operations.append(_Operation(func, call, out, frozenset(_address(x) for x in written), is_random))
        return out

    def _obstacle(
        self, func: OpOverload, args: Any, kwargs: Any, tensors: list[Tensor], written: list[Tensor], is_random: bool
    ) -> str | None:
        """Returns the reason for which an operation cannot be repeated; None if it can."""
        name = func.overloadpacket.__name__
        has_unknown_shape = torch.Tag.dynamic_output_shape in func.tags
        if name in _BY_INDEX:
            has_unknown_shape = any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
        if has_unknown_shape:
            return f"the shape of the result of {func} is known on the host only"
        drawn = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Generator)]
        if is_random and not (drawn and all(self._may_draw_from(x) for x in drawn)):
            return f"{func} draws random numbers, which are to be inputs"
        if any(id(x) not in self._known and _address(x) in self._own for x in tensors):
            return f"{func} reads a result in a way that is not recorded"
        if any(_address(x) not in self._own | self._changeable for x in written):
            return f"{func} changes an input or a constant"
        return None

    def _may_draw_from(self, generator: torch.Generator) -> bool:
        """True for one of the generators, of which operations get other objects."""
        return any(torch.equal(generator.get_state(), g.get_state()) for g in self._generators)

    # ------------------------------------------------------------------------------------------- the straight-line code

    def compiled(self, results: Tree) -> Trace:
        """Returns the trace, with results in a tree such as `results`."""
        code, changed = _Code(self._inputs, self._starts_often), frozenset[int]()
        for operation in self._operations:
            changed |= operation.changed
        for operation in self._needed(results):
            code.add(operation, self._is_fixed(operation, code, changed))
        exec(compile(code.text(self._parameters, results), "<trace>", "exec"), code.constants)
        return code.constants["start"]

    def _needed(self, results: Tree) -> list[_Operation]:
        """Returns the operations without those whose results nobody reads."""
        read = {id(x) for x in _tensors(results)}
        needed = []
        for operation in reversed(self._operations):
            if operation.changed or operation.is_random or any(id(x) in read for x in operation.results):
                read |= {id(x) for x in operation.tensors}
                needed.append(operation)
        return needed[::-1]

    def _is_fixed(self, operation: _Operation, code: _Code, changed: frozenset[int]) -> bool:
        """True if an operation is executed at the start; `changed` are addresses of memory that is changed."""
        tensors = operation.tensors
        if operation.changed or operation.is_random or any(code.varies(x) for x in tensors):
            return False
        used, found = {_address(x) for x in tensors}, {_address(x) for x in operation.results}
        if found and found <= used:
            return True  # views
        return not (found | used) & changed and (self._starts_often or used <= self._own)


class _HostReads(TorchFunctionMode):
    """While it is active, a tracer learns of functions that read tensors on the host without an operation."""

    def __init__(self, tracer: _Tracer):
        super().__init__()
        self._tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _HOST_READS:
            self._tracer.obstacle = self._tracer.obstacle or f"it reads a tensor on the host by {func.__name__}"
        return func(*args, **(kwargs or {}))


class _Code:
    """The lines of a trace.

    Args:
        inputs: Expressions of the inputs by identity.
        starts_often: True if the trace is started again before parameters change.

    Attributes:
        constants: Values that the lines name.
    """

    def __init__(self, inputs: dict[int, str], starts_often: bool):
        self._names, self._starts_often = dict(inputs), starts_often
        self._varying = set(inputs)
        self._fixed_lines: list[str] = []
        self._lines: list[tuple[str, set[str], set[str]]] = []  # with the names that they read and set
        self._read: set[str] = set()
        self.constants: dict[str, Any] = {}

    def varies(self, x: Tensor) -> bool:
        """True if a tensor depends on inputs, or is computed in each call."""
        return id(x) in self._varying

    def add(self, operation: _Operation, is_fixed: bool) -> None:
        """Adds the line of an operation."""
        func, (function, args, kwargs), out = operation.func, operation.call, operation.out
        if func.overloadpacket.__name__ in _SAME and not operation.changed:
            self._names[id(out)] = self._source(args[0])
            if self.varies(args[0]):
                self._varying.add(id(out))
            return
        self._read = set()
        call = self._prepared(func, args)
        if call is None:
            words = [self._source(x) for x in args] + [f"{name}={self._source(x)}" for name, x in kwargs.items()]
            call = f"{self._source(function)}({', '.join(words)})"
        given = {id(x) for x in operation.tensors}  # an operation that changes one returns it
        read, set_here = self._read, set()
        if not operation.changed or any(id(x) not in given for x in operation.results):
            call = f"{self._target(out)} = {call}"
            set_here = {self._names[id(x)] for x in operation.results}
        if is_fixed:
            self._fixed_lines.append(call)
            return
        self._lines.append((call, read, set_here))
        if set_here:
            self._varying |= {id(x) for x in operation.results}

    def _prepared(self, func: OpOverload, args: Any) -> str | None:
        """Returns the call of an operator whose last arguments, its parameters, are prepared at the start.

        None if the operator has no such preparation, or if the parameters depend on inputs.
        """
        found = preparation(func)
        if found is None:
            return None
        count, prepare = found
        parameters = args[count:]
        tensors = _tensors(parameters)
        if any(self.varies(x) for x in tensors) or not (self._starts_often or all(x.is_contiguous() for x in tensors)):
            return None
        words = [self._source(x) for x in parameters]
        name = f"p{len(self._fixed_lines)}"
        self._fixed_lines.append(f"{name} = {self._source(prepare)}({', '.join(words)})")
        self._read = set()
        return f"{name}({', '.join(self._source(x) for x in args[:count])})"

    def _target(self, out: Any) -> str:
        """Names the results of an operation."""
        if isinstance(out, tuple | list):
            return f"[{', '.join(self._target(x) for x in out)}]"
        return self._names.setdefault(id(out), f"x{len(self._names)}")

    def _source(self, value: Any) -> str:
        """Returns the Python expression of an argument or a result."""
        if value is None or isinstance(value, bool | int | str):
            return repr(value)
        if id(value) in self._names:
            self._read.add(self._names[id(value)])
            return self._names[id(value)]
        if isinstance(value, list):
            return f"[{', '.join(self._source(x) for x in value)}]"
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return f"{self._global(type(value))}({', '.join(self._source(x) for x in value)})"
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
        self.constants[name] = value
        return name

    def text(self, parameters: Iterable[str], results: Tree) -> str:
        """Returns the Python code. What no later line reads is released at once."""
        self._read = set()
        found = self._source(results)
        later, lines = set(self._read), []
        local = {name for _, _, set_here in self._lines for name in set_here}
        for line, read, set_here in reversed(self._lines):
            dead = sorted(((read | set_here) - later) & local)
            lines.append(f"        {line}; del {', '.join(dead)}" if dead else f"        {line}")
            later |= read
        return "\n".join(
            [
                "def start():",
                *(f"    {line}" for line in self._fixed_lines),
                f"    def repeat({', '.join(parameters)}):",
                *reversed(lines),
                f"        return {found}",
                "    return repeat",
            ]
        )


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def _address(x: Tensor) -> int:
    """Returns the address of the memory that a tensor is in, or is a view of."""
    return x.untyped_storage().data_ptr()


def _written(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    """Returns the tensors that an operation changes."""
    if not func._schema.is_mutable:
        return []
    found = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += _tensors(args[index] if index < len(args) else kwargs.get(argument.name))
    return found


def _quick_call(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> _Call:
    """Returns a call that probably does the same as an operation, in less time than PyTorch's table of operations."""
    name = func.overloadpacket.__name__
    if func.namespace == "coterie":
        return direct_call(func), args, kwargs
    if name == "_to_copy" and list(kwargs) == ["dtype"] and kwargs["dtype"] is not args[0].dtype:
        return Tensor.to, (args[0], kwargs["dtype"]), {}
    if name == "slice" and len(args) == 4:
        start, end, _ = slice(args[2], args[3]).indices(args[0].shape[args[1]])
        return torch.narrow, (*args[:2], start, end - start), {}
    return getattr(torch, name, None) or getattr(Tensor, name, func), args, kwargs


_EMPTY = (torch.empty, torch.empty_like, Tensor.new_empty)
"""Functions whose results have any numbers."""


def _has_result(call: _Call, expected: Any) -> bool:
    """True if a call has the expected result."""
    function, args, kwargs = call
    try:
        found = function(*args, **kwargs)
        if function in _EMPTY:
            return found.shape == expected.shape and found.dtype is expected.dtype
        return equal(found, expected)
    except (TypeError, ValueError, RuntimeError):
        return False
