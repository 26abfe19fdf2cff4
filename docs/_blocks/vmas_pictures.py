"""Draws the pictures of the VMAS page: `PYTHONPATH=.vmas .venv/bin/python docs/_blocks/vmas_pictures.py`."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

import coterie
from coterie.envs.contract.traces import random_actions

PICTURES = Path(__file__).parents[1] / "pictures" / "vmas"

if __name__ == "__main__":
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, steps in {"balance": 20, "navigation": 8, "wheel": 5}.items():
        env, generator = coterie.make(f"vmas/{name}", seed=3), torch.Generator().manual_seed(0)
        timestep = env.reset()
        for _ in range(steps):
            _, timestep = env.step(random_actions(env.spec, timestep, generator))
        picture = Image.fromarray(env.render(0, 400)).quantize(64, dither=Image.Dither.NONE)
        picture.save(PICTURES / f"{name}.png", optimize=True)
