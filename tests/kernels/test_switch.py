"""The setting `kernels`."""

import pytest

from coterie.core.errors import UserError
from coterie.kernels import native, switch
from coterie.kernels.build import KernelsUnavailableError


@pytest.fixture(autouse=True)
def restored():
    yield
    switch.configure("auto")


@pytest.fixture
def no_compiler(monkeypatch):
    def fail():
        raise KernelsUnavailableError("no C++ compiler found")

    monkeypatch.setattr(native, "load", fail)


def test_on_uses_the_kernels_until_they_are_turned_off():
    assert switch.configure("on").describe() == "on"
    assert switch.on
    assert switch.configure("off").describe() == "off"
    assert not switch.on


def test_on_without_a_compiler_is_an_error_that_names_the_fix(no_compiler):
    with pytest.raises(UserError, match=r"^kernels=on: no C\+\+ compiler found. Install a C\+\+17 .*kernels=off.$"):
        switch.configure("on")
    assert not switch.on


def test_auto_without_a_compiler_is_off_with_the_reason(no_compiler):
    assert switch.configure("auto", before=True).describe() == "off (no C++ compiler found)"
    assert not switch.on


def test_auto_repeats_the_choice_of_the_run():
    assert switch.configure("auto", before=True).on
    assert not switch.configure("auto", before=False).on


def test_there_are_no_kernels_for_a_gpu():
    assert switch.configure("auto", "cuda:0", before=True).describe() == "off (device=cuda:0)"
    with pytest.raises(UserError, match=r"there are none for device=cuda:0. Use kernels=off or device=cpu."):
        switch.configure("on", "cuda:0")
