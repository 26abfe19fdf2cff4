"""Tensors in memory-mapped files."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

import torch
from torch import Tensor

from coterie.core.files import disk_error


class MappedFiles:
    """Tensors in files of a temporary folder, which the operating system frees however the process ends."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="coterie-replay-"))
        self._count = 0
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Returns a tensor of zeros in a new file.

        Raises:
            UserError: If the disk is full.
        """
        numel = int(torch.Size(shape).numel())
        if numel == 0:
            return torch.zeros(shape, dtype=dtype)
        nbytes = numel * dtype.itemsize
        path = self._folder / str(self._count)
        self._count += 1
        try:
            with open(path, "wb") as file:
                if hasattr(os, "posix_fallocate"):  # a hole that cannot be filled later would kill the process
                    os.posix_fallocate(file.fileno(), 0, nbytes)
                else:
                    file.truncate(nbytes)
        except OSError as error:
            raise disk_error("the replay buffer in the temporary folder", self._folder, error) from error
        tensor = torch.from_file(str(path), shared=True, size=numel, dtype=dtype).view(shape)
        if os.name != "nt":  # the mapping outlasts the name, and a killed process leaves no file
            path.unlink()
        return tensor
