"""Learning probes run without and with the fused kernels."""

from collections.abc import Generator

import pytest

from coterie.kernels import switch


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function.__name__.startswith("test_probe"):
        metafunc.parametrize("kernels", ["off", "on"], indirect=True)


@pytest.fixture(autouse=True)
def kernels(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    """Turns the kernels on or off for probes; other tests use what `--kernels` names."""
    switch.configure(getattr(request, "param", "auto"))
    yield
    switch.configure("auto")
