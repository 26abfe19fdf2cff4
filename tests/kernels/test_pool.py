"""The threads of the kernels: tasks, callers at the same time, forked processes, and the end of a process."""

import subprocess
import threading
from pathlib import Path

import pytest
import torch

from coterie.kernels import build, native
from coterie.kernels.mlp import mlp

PROGRAM = Path(__file__).with_name("pool.cpp")


def arguments(rows):
    """Returns x, weights and biases of two layers, one of which is wide."""
    draw = torch.Generator().manual_seed(rows)
    sizes = [(20, 64), (64, 300), (300, 5)]
    weights = [torch.randn(*size, generator=draw).div(8).requires_grad_() for size in sizes]
    return torch.randn(rows, 20, generator=draw), weights, [torch.zeros(size[1]) for size in sizes]


def gradients(rows, threads):
    x, weights, biases = arguments(rows)
    with native.threads(threads):
        out = mlp(x, weights, biases, activated=2)
        return [out, *torch.autograd.grad(out.square().sum(), weights)]


def test_every_task_is_executed_once_in_every_situation(tmp_path):
    """Threads that sleep or not, more threads than cores, several callers, exceptions, signals and forks."""
    program = tmp_path / "pool"
    words = [build.find_compiler().path, "-std=c++17", "-O2", "-pthread", str(PROGRAM), str(build.SOURCE / "pool.cpp")]
    subprocess.run([*words, "-o", str(program)], check=True, timeout=200)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the pool executes every task once\n", "")


@pytest.mark.parametrize("rows", [1, 49, 700])
def test_the_number_of_threads_does_not_change_a_bit_even_if_it_is_larger_than_that_of_cores(rows):
    expected = gradients(rows, 1)
    for threads in (2, 3, 8):
        assert all(map(torch.equal, gradients(rows, threads), expected))


def test_kernels_in_several_threads_of_python_do_not_disturb_each_other():
    rows = (48, 100, 333, 700)
    expected = {count: gradients(count, 1) for count in rows}
    wrong = []

    def work(count, threads):
        for _ in range(30):
            found = gradients(count, threads)
            wrong.extend([count] * (not all(map(torch.equal, found, expected[count]))))

    workers = [threading.Thread(target=work, args=(count, 2 + index)) for index, count in enumerate(rows)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
