"""A CUDA device that computes on the CPU: finds mixed devices and reads by the host without a GPU.

Tensors on it report the device cuda:0 and hold a CPU tensor. Unlike those of PyTorch's `FakeTensorMode` they have
values, so that whole training iterations run and can be compared with those on the CPU, and they have gradients in a
PyTorch that was built without CUDA.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._cxx_pytree import tree_leaves, tree_map
from torch.utils._python_dispatch import TorchDispatchMode

import coterie
from coterie.algos import graphed
from fakegraph import CaptureError, Recording

aten = torch.ops.aten
CUDA = torch.device("cuda")
_FIRST_GPU = torch.device("cuda:0")
_SOURCE = Path(coterie.__file__).parent

_READS = {
    aten._local_scalar_dense, aten.equal, aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim,
    aten.unique_consecutive, aten.bincount, aten.is_nonzero,
}  # fmt: skip
"""Operations for which the host waits: it needs a value, or the size of the result."""
_INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
"""Operations that accept indices on the host, which are copied, and that read the number of True in a mask."""
_TAKES_HOST_SCALAR = {aten.masked_fill, aten.masked_fill_, aten.where, aten.fill, aten.fill_, *_INDEXED}
"""Operations that accept a scalar tensor on the host, besides the elementwise ones."""
_READS_NUMBER = {aten.masked_fill, aten.masked_fill_, aten.index_fill, aten.index_fill_}
"""Operations that read their last argument, if it is a tensor on the device."""


class MixedDevicesError(RuntimeError):
    """An operation got tensors on different devices."""


class FakeCudaTensor(torch.Tensor):
    """A tensor on the fake device; `host` holds its values. PyTorch takes it for a tensor on the CPU."""

    host: torch.Tensor

    @staticmethod
    def __new__(cls, host: torch.Tensor, requires_grad: bool = False) -> FakeCudaTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device="cpu",
            requires_grad=requires_grad,
        )
        made.host = host
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = _FIRST_GPU
    is_cuda, is_cpu = True, False

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(f"{func} on the fake CUDA device outside of its context")

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, value: FakeCudaTensor) -> None:
        """PyTorch's setter replaces sizes and strides, but no attributes."""
        torch.Tensor.data.__set__(self, value)
        self.host = value.host

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeCudaTensor:
        made = memo[id(self)] = FakeCudaTensor(self.host.detach().clone(), self.requires_grad)
        made.__dict__ |= {name: value for name, value in self.__dict__.items() if name != "host"}
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"FakeCudaTensor({self.host!r})"


class FakeCudaGenerator(torch.Generator):
    """A generator on the fake device, with the numbers of one on the CPU. It has to be seeded."""

    seeds: set[int] = set()  # noqa: RUF012
    states: dict[bytes, torch.Tensor] = {}  # noqa: RUF012
    device = _FIRST_GPU

    def manual_seed(self, seed: int) -> FakeCudaGenerator:
        super().manual_seed(seed)
        self.seeds.add(self.initial_seed())
        return self

    def get_state(self) -> torch.Tensor:
        """Returns 16 bytes, as on a GPU, that stand for the state."""
        state = super().get_state()
        key = hashlib.sha256(state.numpy().tobytes()).digest()[:16]
        self.states[key] = state
        return torch.tensor(list(key), dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> FakeCudaGenerator:
        super().set_state(self.states[bytes(state.tolist())])
        return self


class FakeCuda(TorchDispatchMode):
    """Executes operations on the fake device and raises MixedDevicesError for those that get tensors of both devices.

    Attributes:
        reads: Reads by the host, by the function of Coterie that reads.
        copies: Copies from the host to the device, by the function of Coterie that copies.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.recording: Recording | None = None
        """The capture of a CUDA graph that is under way."""
        self.is_replaying = False
        """True while recorded operations are executed on tensors of the host."""
        self.inherits_device = False
        """True within a call on a tensor of this device, whose own tensors PyTorch allocates on the same device."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here: PyTorch need not import its compiler, and exclude every operation from it."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.is_replaying:
            return func(*args, **kwargs)
        leaves = _leaves((*args, *kwargs.values()))
        is_on_device = any(isinstance(x, FakeCudaTensor) for x in leaves)
        if not is_on_device and "device" not in kwargs:
            return func(*args, **kwargs)
        on_device = self._is_result_on_device(func, args, kwargs, leaves)
        if is_on_device:
            self._count(func.overloadpacket, args)
        host_args, host_kwargs = map(_to_host, args), {name: _to_host(x) for name, x in kwargs.items()}
        if not on_device:
            return func(*host_args, **host_kwargs)
        execute = func if self.recording is None else partial(self.recording.execute, func)
        result = execute(*host_args, **host_kwargs)
        tensors = {id(x.host): x for x in leaves if isinstance(x, FakeCudaTensor)}
        if isinstance(result, torch.Tensor):
            return _to_device(result, tensors)
        return tree_map(lambda x: _to_device(x, tensors), result)

    def _is_result_on_device(self, func: Any, args: Any, kwargs: Any, leaves: list[Any]) -> bool:
        """Checks the devices of the arguments. Returns True if the result is on the fake device."""
        if (device := kwargs.get("device")) is not None:
            generator = kwargs.get("generator")
            if generator is not None and (generator.initial_seed() in FakeCudaGenerator.seeds) != (
                device.type == "cuda"
            ):
                raise MixedDevicesError(f"{func}: a generator on another device than {device}")
            return device.type == "cuda" or self.inherits_device
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        if not any(isinstance(x, FakeCudaTensor) for x in tensors):
            return False
        packet = func.overloadpacket
        if packet is aten.copy_:
            return isinstance(args[0], FakeCudaTensor)
        checked = tensors
        if packet in _INDEXED:
            checked = [args[0], *(x for x in args[2:] if isinstance(x, torch.Tensor))]
        others = [x for x in checked if not isinstance(x, FakeCudaTensor)]
        if others:
            scalars = torch.Tag.pointwise in func.tags or packet in _TAKES_HOST_SCALAR
            if any(x.ndim or not scalars for x in others):
                raise MixedDevicesError(f"{func}: tensors on cuda:0 and on cpu")
        return packet not in _READS or packet not in (aten._local_scalar_dense, aten.equal)

    def _count(self, packet: Any, args: Any) -> None:
        """Counts what an operation on a tensor of the device transfers."""
        if packet is aten.copy_:
            if not isinstance(args[0], FakeCudaTensor):
                self.count(self.reads)
            elif not isinstance(args[1], FakeCudaTensor):
                self.count(self.copies)
        elif (
            packet in _READS
            or (packet is aten.repeat_interleave and len(args) == 1)
            or (packet in _READS_NUMBER and isinstance(args[-1], FakeCudaTensor))
        ):
            self.count(self.reads)
        elif packet is aten.where and any(_is_host_tensor(x) for x in args):
            self.count(self.copies)
        elif packet in _INDEXED:
            indices = [x for x in args[1] if x is not None]
            masks = [x for x in indices if x.dtype == torch.bool]
            fills = len(args) > 2 and args[2].numel() == 1 and not isinstance(args[2], FakeCudaTensor)
            if masks and not fills:
                self.count(self.reads)
            if any(not isinstance(x, FakeCudaTensor) for x in indices):
                self.count(self.copies)

    def count(self, transfers: Counter[str]) -> None:
        """Counts one of the reads or copies, which are not allowed while a graph is captured."""
        if self.recording is not None:
            kind = "read by the host" if transfers is self.reads else "copy from the host"
            raise CaptureError(f"{kind} in {_caller()} while a graph is captured")
        transfers[_caller()] += 1

    def warm_up(self, function: Callable[[], Any], device: torch.device) -> None:
        function()

    def capture(
        self, function: Callable[[], Any], generators: Sequence[torch.Generator], device: torch.device
    ) -> tuple[Callable[[], None], Any]:
        """Records the operations of a function; what they changed is restored."""
        self.recording = recording = Recording(generators)
        try:
            outputs = function()
        finally:
            self.recording = None
            recording.undo()

        def replay() -> None:
            self.is_replaying = True
            try:
                recording.replay()
            finally:
                self.is_replaying = False

        return replay, outputs


class _Conversions(TorchFunctionMode):
    """Executes what PyTorch would not dispatch: conversions between devices, and tensors from Python values."""

    def __init__(self, cuda: FakeCuda):
        super().__init__()
        self._cuda = cuda

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        makes_tensor = func in (torch.tensor, torch.as_tensor) and not isinstance(args[0], FakeCudaTensor)
        if makes_tensor and _is_cuda(kwargs.get("device")):
            kwargs.pop("device")
            return self._moved(func(*args, **kwargs), _FIRST_GPU)
        if func is torch.Tensor.new_tensor and isinstance(args[0], FakeCudaTensor):
            return self._moved(torch.tensor(args[1], dtype=kwargs.get("dtype", args[0].dtype)), _FIRST_GPU)
        if func in (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda):
            return self._to(func, args, kwargs)
        if func is torch.nn.functional.one_hot and isinstance(args[0], FakeCudaTensor):
            return _one_hot(*args, **kwargs)
        if "device" in kwargs or not any(isinstance(x, FakeCudaTensor) for x in _leaves((*args, *kwargs.values()))):
            return func(*args, **kwargs)
        outer, self._cuda.inherits_device = self._cuda.inherits_device, True
        try:
            return func(*args, **kwargs)
        finally:
            self._cuda.inherits_device = outer

    def _to(self, func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        x, *rest = args
        if func is not torch.Tensor.to:
            device, dtype, copy = torch.device("cpu" if func is torch.Tensor.cpu else "cuda"), None, False
        elif rest and isinstance(rest[0], torch.Tensor):
            device, dtype, copy = rest[0].device, rest[0].dtype, kwargs.pop("copy", False)
        else:
            copy = kwargs.pop("copy", False)
            device, dtype, *_ = torch._C._nn._parse_to(*rest, **kwargs)
        if dtype is not None and dtype != x.dtype:
            x = torch.Tensor.to(x, dtype=dtype)
        elif copy and (device is None or device.type == x.device.type):
            x = x.clone()
        return x if device is None or device.type == x.device.type else self._moved(x, device)

    def _moved(self, x: torch.Tensor, device: torch.device) -> torch.Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            raise NotImplementedError("gradients through a copy between devices")
        if device.type == "cuda":
            self._cuda.count(self._cuda.copies)
            return FakeCudaTensor(x.detach().clone())
        self._cuda.count(self._cuda.reads)
        return x.host.clone()


def _is_host_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and not isinstance(x, FakeCudaTensor)


def _one_hot(index: torch.Tensor, num_classes: int) -> torch.Tensor:
    """PyTorch's checks the indices, unless they are on a GPU."""
    zeros = torch.zeros(*index.shape, num_classes, dtype=torch.int64, device=_FIRST_GPU)
    return zeros.scatter_(-1, index.unsqueeze(-1), 1)


@contextlib.contextmanager
def fake_cuda() -> Iterator[FakeCuda]:
    """Provides the fake device as `cuda` and counts reads and copies."""
    cuda = FakeCuda()
    FakeCudaGenerator.seeds.clear()  # of earlier tests, whose seeds this one may use on the CPU
    real = torch.Generator
    overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
    grouped = torch.optim.Optimizer._group_tensors_by_device_and_dtype

    class Generator(real):  # a class, because PyTorch's modules name it in unions of types
        def __new__(cls, device: Any = "cpu") -> torch.Generator:
            return FakeCudaGenerator() if _is_cuda(device) else real(device)

    def by_device(tensors: Any, with_indices: bool = False) -> Any:  # PyTorch's takes these tensors for the CPU's
        on_device = any(isinstance(x, FakeCudaTensor) for x in tree_leaves(tensors))
        found = grouped(tensors, with_indices)
        return {(_FIRST_GPU, dtype): x for (_, dtype), x in found.items()} if on_device else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "Generator", Generator)
        patch.setattr(torch, "inference_mode", _no_grad)  # these tensors do not support it
        patch.setattr(torch.optim.Optimizer, "_group_tensors_by_device_and_dtype", staticmethod(by_device))
        patch.setattr(graphed, "warm_up", cuda.warm_up)
        patch.setattr(graphed, "capture", cuda.capture)
        patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        patch.setattr(torch.cuda, "get_device_name", lambda device=None: "fake")
        patch.setattr(torch.cuda, "mem_get_info", lambda device=None: (1 << 34, 1 << 34))
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        try:
            with cuda, _Conversions(cuda):
                yield cuda
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(overwrites)
            _clear_tables()


def _no_grad(mode: bool = True) -> contextlib.AbstractContextManager[None]:
    return torch.no_grad() if mode else torch.enable_grad()


def _clear_tables() -> None:
    """Forgets what functions have cached, such as tables by device."""
    for name, module in list(sys.modules.items()):
        if name.startswith("coterie."):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _leaves(values: Sequence[Any]) -> list[Any]:
    """Returns arguments and the entries of lists among them, faster than PyTorch's functions for any tree."""
    found = []
    for x in values:
        if type(x) in (list, tuple):
            found += _leaves(x)
        else:
            found.append(x)
    return found


def _to_host(x: Any) -> Any:
    if isinstance(x, FakeCudaTensor):
        return x.host
    if type(x) in (list, tuple):
        return type(x)(map(_to_host, x))
    return torch.device("cpu") if isinstance(x, torch.device) else x


def _to_device(x: Any, tensors: dict[int, FakeCudaTensor]) -> Any:
    """Wraps a result. The result of an operation in place is the tensor that was changed."""
    if not isinstance(x, torch.Tensor):
        return x
    changed = tensors.get(id(x))
    if changed is not None and changed.shape != x.shape:
        raise NotImplementedError("operations that change the shape in place")
    return FakeCudaTensor(x) if changed is None else changed


def _caller() -> str:
    """Returns module:function of the innermost frame of Coterie, or of the outermost caller without one."""
    frame = sys._getframe()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_SOURCE):
            return f"{path.relative_to(_SOURCE).with_suffix('').as_posix()}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "outside of Coterie"
