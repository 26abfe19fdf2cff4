"""Learning probes run with the fused kernels in `test_probes.py`, and without in the files of single algorithms."""

from collections.abc import Generator

import pytest

from coterie.algos import learner
from coterie.kernels import switch


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function.__name__.startswith("test_probe"):
        setting = "on" if metafunc.module.__name__.endswith("test_probes") else "off"
        metafunc.parametrize("kernels", [setting], indirect=True)


@pytest.fixture(autouse=True)
def kernels(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    """Turns the kernels on or off for probes; other tests use what `--kernels` names."""
    switch.configure(getattr(request, "param", "auto"))
    yield
    switch.configure("auto")


@pytest.fixture
def plain_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradient steps are not traced, so that a test can record the calls of each of them."""
    monkeypatch.setattr(learner, "TracedStep", lambda step, **_: step)
