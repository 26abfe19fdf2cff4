"""Exchange of tensors between the ranks of one machine, through a file in main memory that all of them map."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from coterie.kernels import native
from coterie.ranks.process_ranks import LocalExchange, PeerEndedError, PeersLateError

_BYTES = 32 << 20
"""Most bytes of the file with up to 64 ranks."""
_LEAST_SLOT, _LARGEST_SLOT = 1 << 18, 1 << 22
"""Bytes that a rank contributes to an exchange at once. Larger tensors are exchanged in parts."""
_CHECK_SECONDS = 0.25
"""Seconds of waiting after which a rank checks that the others still run."""
_FOLDER = Path("/dev/shm")
_SUMS = {torch.float32: "f32", torch.float64: "f64", torch.int64: "i64"}


def create_shared_file(size: int) -> Path:
    """Creates a file for the exchanges of `size` ranks, which only this user can read.

    Raises:
        KernelsUnavailableError: If the kernels cannot be compiled or loaded.
        OSError: If there is no place for it, or the system has no such files.
    """
    length = _length(size)
    handle, name = tempfile.mkstemp(prefix="coterie-exchange-", dir=_FOLDER if os.access(_FOLDER, os.W_OK) else None)
    try:
        os.posix_fallocate(handle, 0, length)  # a full disk is found here, not when a page is first written
    except (OSError, AttributeError) as error:
        os.unlink(name)
        raise OSError(f"cannot reserve {length} bytes: {error}") from error
    finally:
        os.close(handle)
    return Path(name)


def _slot_bytes(size: int) -> int:
    return max(_LEAST_SLOT, min(_LARGEST_SLOT, _BYTES // (2 * size) // _LEAST_SLOT * _LEAST_SLOT))


def _length(size: int) -> int:
    return size * native.load().coterie_exchange_counter_bytes() + 2 * size * _slot_bytes(size)


@final
class SharedMemory(LocalExchange):
    """The exchanges of one rank through a file that all ranks map.

    A rank locks one byte of the file. The system releases it when its process ends.

    Args:
        path: File made by `create_shared_file`. It can be removed when all ranks have opened it.
        rank: Number of this rank.
        size: Number of ranks.
        timeout: Seconds to wait for other ranks in an exchange.

    Raises:
        KernelsUnavailableError: If the kernels cannot be compiled or loaded.
        OSError: If the file cannot be mapped or locked.
    """

    def __init__(self, path: Path, rank: int, size: int, *, timeout: float):
        import fcntl  # not on Windows

        self._lock, self._size, self._timeout = fcntl, size, timeout
        self._library = _declared(native.load())
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        self._map = mmap.mmap(self._file, _length(size))
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._slot_bytes = _slot_bytes(size)
        self._settings = array("q", [address, rank, size, self._slot_bytes])
        self._place = self._settings.buffer_info()[0]
        self._number = 0  # of exchanges so far
        self._sums = {dtype: getattr(self._library, f"coterie_exchange_sum_{name}") for dtype, name in _SUMS.items()}

    def can_sum(self, x: Tensor) -> bool:
        return x.is_cpu and x.dtype in _SUMS and x.is_contiguous()

    def sum_(self, x: Tensor) -> None:
        add, width = self._sums[x.dtype], x.element_size()
        for start, nbytes in self._parts(x.nbytes):
            place = x.data_ptr() + start
            self._start(place, nbytes)
            add(self._place, self._number, place, nbytes // width)

    def gather(self, x: Tensor) -> list[Tensor]:
        x = x.contiguous()
        found = [torch.empty_like(x) for _ in range(self._size)]
        for start, nbytes in self._parts(x.nbytes):
            self._start(x.data_ptr() + start, nbytes)
            for rank, out in enumerate(found):
                self._library.coterie_exchange_read(self._place, self._number, rank, out.data_ptr() + start, nbytes)
        return found

    def _parts(self, nbytes: int) -> Iterator[tuple[int, int]]:
        """Yields the start and the length of parts that fit into a slot."""
        for start in range(0, nbytes, self._slot_bytes):
            yield start, min(self._slot_bytes, nbytes - start)

    def _start(self, place: int, nbytes: int) -> None:
        """Contributes bytes to the next exchange, and waits until all ranks have done so."""
        self._number += 1
        self._library.coterie_exchange_start(self._place, self._number, place, nbytes)
        late = self._library.coterie_exchange_wait(self._place, self._number, _CHECK_SECONDS)
        if late >= 0:
            self._wait_for(late)

    def _wait_for(self, late: int) -> None:
        """Waits until all ranks have contributed.

        Raises:
            PeerEndedError: If a rank that has not contributed does not run any more.
            PeersLateError: If ranks do not contribute within `timeout` seconds.
        """
        until = time.monotonic() + self._timeout - _CHECK_SECONDS
        while late >= 0:
            if self._has_ended(late):
                raise PeerEndedError(late)
            if time.monotonic() > until:
                count = self._library.coterie_exchange_count
                raise PeersLateError([r for r in range(self._size) if count(self._place, r) < self._number])
            late = self._library.coterie_exchange_wait(self._place, self._number, _CHECK_SECONDS)

    def _has_ended(self, rank: int) -> bool:
        try:
            self._lock.lockf(self._file, self._lock.LOCK_EX | self._lock.LOCK_NB, 1, rank)
        except OSError:  # it is locked
            return False
        self._lock.lockf(self._file, self._lock.LOCK_UN, 1, rank)
        return True

    def close(self) -> None:
        self._map.close()
        os.close(self._file)


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declares the arguments and results of the library's functions."""
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.coterie_exchange_start.argtypes = [pointer, integer, pointer, integer]
    library.coterie_exchange_wait.argtypes = [pointer, integer, ctypes.c_double]
    library.coterie_exchange_wait.restype = integer
    library.coterie_exchange_count.argtypes = [pointer, integer]
    library.coterie_exchange_count.restype = integer
    library.coterie_exchange_read.argtypes = [pointer, integer, integer, pointer, integer]
    library.coterie_exchange_start.restype = library.coterie_exchange_read.restype = None
    for name in _SUMS.values():
        function = getattr(library, f"coterie_exchange_sum_{name}")
        function.argtypes, function.restype = [pointer, integer, pointer, integer], None
    return library
