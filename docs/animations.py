"""Trains small teams and writes their moving pictures into `docs/pictures/trained`, and the figure of a comparison.

    python docs/animations.py                # all: about ten minutes on two idle cores
    python docs/animations.py simple_tag     # one

The same script, seeds and versions give the same pictures. `tests/test_docs.py` checks their sizes.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image, ImageSequence

import coterie
from coterie.__main__ import main as coterie_program

FOLDER = Path(__file__).resolve().parent / "pictures" / "trained"
SIZE = 320
"""Longer side of a picture in pixels."""
COLORS = 64
"""Colors of a picture: the drawings have few, the rest is smoothing of edges."""


@dataclass(frozen=True)
class Animation:
    """A short training run and how its episodes are shown.

    Attributes:
        env: Environment.
        steps: Environment steps of the run.
        episodes: Episodes shown, one after the other.
        seed: Seed of the episodes.
        frames: Most frames shown.
        settings: Other settings of the run.
    """

    env: str
    steps: float
    episodes: int = 2
    seed: int = 0
    frames: int = 120
    settings: dict[str, Any] = field(default_factory=dict)

    def train(self, out: Path) -> None:
        """Trains MAPPO, once: an existing run is used again."""
        if not (out / "manifest.json").exists():
            coterie.train(algo="mappo", env=self.env, steps=self.steps, out=out, **self.settings)

    def record(self, run: Path, file: Path) -> None:
        """Writes a looping GIF."""
        coterie.play(run, video=file, episodes=self.episodes, seed=self.seed, mode="greedy", size=SIZE)
        reduce_colors(file, self.frames)


ANIMATIONS = {
    "simple_spread": Animation("particle/simple_spread", 3e6, episodes=3),
    "simple_tag": Animation("particle/simple_tag", 1e6, episodes=3),
    "skirmish_3m": Animation("skirmish/3m", 7e5),
    "overcooked": Animation("overcooked/cramped_room", 1e6, episodes=1),
}


COMPARISON = FOLDER.parent / "comparison.png"
"""Figure of MAPPO and IPPO on `coop/baton`, three seeds each."""


def compare(runs: Path) -> None:
    """Trains the runs of the comparison, those that are missing, and draws its figure."""
    out = runs / "comparison"
    study = ["seed=0,1,2", "algo=mappo,ippo", "env=coop/baton", "steps=300k", "eval.every=15k", "progress=off"]
    coterie_program(["train", "-m", *study, f"out={out}"])
    coterie_program(["compare", str(out), "--plot", str(COMPARISON)])
    with Image.open(COMPARISON) as image:
        small = image.convert("RGB").resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS)
    small.quantize(COLORS, dither=Image.Dither.NONE).save(COMPARISON, optimize=True)


def reduce_colors(file: Path, most: int) -> None:
    """Rewrites a GIF with one palette of `COLORS` colors and at most `most` frames."""
    with Image.open(file) as image:
        frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(image)][:most]
        duration = image.info["duration"]
    palette = frames[len(frames) // 2].quantize(COLORS)
    first, *rest = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    first.save(file, save_all=True, append_images=rest, duration=duration, loop=0, optimize=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", choices=[[], *ANIMATIONS, "comparison"], metavar="NAME", help="pictures; default: all"
    )
    parser.add_argument("--runs", type=Path, help="folder that keeps the runs, so that pictures can be drawn again")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        runs = given.runs or Path(scratch)
        for name in given.names or [*ANIMATIONS, "comparison"]:
            if name == "comparison":
                compare(runs)
                continue
            ANIMATIONS[name].train(runs / name)
            ANIMATIONS[name].record(runs / name, FOLDER / f"{name}.gif")
    return 0


if __name__ == "__main__":
    sys.exit(main())
