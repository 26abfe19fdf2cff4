"""Stores of keys and values that all ranks of a run can read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Protocol, final

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from coterie.core.files import disk_error


class KeyStore(Protocol):
    """Keys and values that ranks share. The stores of `torch.distributed` have these methods, too."""

    def set(self, key: str, value: str, /) -> None:
        """Sets or replaces the value of a key."""
        ...

    def get(self, key: str, /) -> bytes:
        """Returns the value of a key, which `check` has found."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """True if all keys have values."""
        ...


@final
class FolderStore:
    """A store for ranks on one machine: one file per key, which is replaced as a whole.

    Unlike that of `torch.distributed.FileStore`, no file is locked: a rank that is stopped at any instant never makes
    the others wait.

    Args:
        folder: Folder of the files. Created if it does not exist.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def set(self, key: str, value: str, /) -> None:
        """Sets or replaces the value of a key.

        Raises:
            UserError: If the disk is full.
        """
        path = self._path(key)
        new = path.with_name(f"{path.name}.{os.getpid()}.new")
        try:
            new.write_text(value, encoding="utf-8")
            new.replace(path)
        except OSError as error:
            raise disk_error("the messages of ranks in the temporary folder", path, error) from error

    def get(self, key: str, /) -> bytes:
        """Returns the value of a key.

        Raises:
            FileNotFoundError: If it has none.
        """
        return self._path(key).read_bytes()

    def check(self, keys: Sequence[str], /) -> bool:
        """True if all keys have values."""
        return all(self._path(key).exists() for key in keys)

    def _path(self, key: str) -> Path:
        return self._folder / key.replace("/", "-")


def file_store(path: Path, size: int) -> Store:
    """Returns the store with which ranks on one machine connect to each other. It needs no port, but locks its file."""
    return dist.FileStore(str(path), size)  # pyright: ignore[reportPrivateImportUsage]


def launcher_store(timeout: float) -> Store:
    """Returns the store of `torchrun`, from its environment variables.

    With `--max-restarts`, the store outlives the ranks, so those of each attempt have keys of their own: otherwise they
    would find the addresses of ranks that have ended.
    """
    found = rendezvous("env://", timeout=timedelta(seconds=max(timeout, 60.0)))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"coterie/attempt-{attempt}", next(iter(found))[0])
