"""Kernels on and off, and numbers of threads, for a part of a test."""

import contextlib

import pytest
import torch

from coterie.kernels import switch


@pytest.fixture
def kernels_on():
    """Returns a context manager that turns the kernels on or off."""

    @contextlib.contextmanager
    def turned(on):
        switch.configure("on" if on else "off")
        try:
            yield
        finally:
            switch.configure("auto")

    return turned


@pytest.fixture
def threads():
    """Returns a context manager that sets the number of PyTorch's threads."""

    @contextlib.contextmanager
    def limited(count):
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    return limited
