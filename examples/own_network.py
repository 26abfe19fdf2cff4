"""Your own network: a residual body for the actors and critics of any algorithm.

python examples/own_network.py [STEPS]
"""

import sys

from torch import Tensor, nn

import coterie


class ResidualBody(nn.Module):
    """Maps inputs [M, input_size] to features [M, width]; the critic is wider."""

    def __init__(self, input_size: int, role: str | None, part: str):
        super().__init__()
        width = 128 if part == "critic" else 64
        self.first = nn.Linear(input_size, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        for block in self.blocks:
            x = x + block(x).relu()
        return x


if __name__ == "__main__":
    steps = sys.argv[1] if len(sys.argv) > 1 else "200k"
    run = coterie.train(
        algo="mappo", network="own_network:ResidualBody", env="probe/both", steps=steps, out="runs/own_network"
    )
    print(coterie.evaluate(run, episodes=100)["teams"])
