"""Installs StarCraft II for Linux and the maps of SMAC or SMACv2.

    python -m coterie.envs.external.install_starcraft --accept-license

Blizzard's packages are encrypted with a password by which one agrees to its AI and Machine Learning License, hence the
option. Needs the program unzip, about 4 GB to download and 9 GB of disk for some minutes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import wrap_file

from coterie.core.errors import UserError
from coterie.core.terminal import print_line

GAME = "http://blzdistsc2-a.akamaihd.net/Linux"
"""Folder of Blizzard's packages, as listed in s2client-proto."""
MAPS = {
    "smac": "https://github.com/oxwhirl/smac/releases/download/v0.1-beta1/SMAC_Maps.zip",
    "smacv2": "https://github.com/oxwhirl/smacv2/releases/download/maps/SMAC_Maps.zip",
}
LICENSE = "https://blzdistsc2-a.akamaihd.net/AI_AND_MACHINE_LEARNING_LICENSE.html"
_PASSWORD = "iagreetotheeula"


def install(
    folder: Path,
    version: str,
    families: Sequence[str],
    *,
    game: str = GAME,
    maps: Callable[[str], str] = MAPS.__getitem__,
) -> None:
    """Installs what is missing. A stopped installation leaves neither a part of the game nor a part of the maps.

    Args:
        folder: Folder of the game, such as `~/StarCraftII`.
        version: Version of the game, such as 4.10 or 4.6.2.69232.
        families: Whose maps to install, `smac` and `smacv2`.
        game: Address of the folder with the packages of the game.
        maps: Returns the address of a family's maps.

    Raises:
        UserError: If unzip is missing, a download fails, or a file is not what it should be.
    """
    if shutil.which("unzip") is None:
        raise UserError("unzip is not installed. Install it (Debian: apt-get install unzip).")
    if (folder / "Versions").is_dir():
        print_line(f"{folder}: StarCraft II is installed")
    elif folder.exists() and any(folder.iterdir()):
        raise UserError(f"--folder {folder}: it is not empty, and contains no StarCraft II. Name another folder.")
    else:
        _install_game(folder, f"{game}/SC2.{version}.zip")
    for family in families:
        _install_maps(folder / "Maps" / "SMAC_Maps", maps(family))


def _install_game(folder: Path, address: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".starcraft-") as temporary:
        unpacked = _unpacked(address, Path(temporary))
        found = next((path.parent for path in (unpacked, *unpacked.iterdir()) for path in path.glob("Versions")), None)
        if found is None:
            raise UserError(
                f"{address}: it contains no folder Versions, so it is no package of StarCraft II for Linux."
            )
        if folder.exists():
            folder.rmdir()
        found.rename(folder)
    print_line(f"{folder}: installed StarCraft II")


def _install_maps(folder: Path, address: str) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parents[1], prefix=".maps-") as temporary:
        found = sorted(_unpacked(address, Path(temporary)).rglob("*.SC2Map"))
        if not found:
            raise UserError(f"{address}: it contains no maps (.SC2Map).")
        folder.mkdir(parents=True, exist_ok=True)
        for path in found:
            path.replace(folder / path.name)
    print_line(f"{folder}: installed {len(found)} maps")


def _unpacked(address: str, folder: Path) -> Path:
    """Downloads and unpacks a file into a folder, and returns where its content is."""
    archive, content = folder / "download.zip", folder / "content"
    _download(address, archive)
    done = subprocess.run(
        ["unzip", "-q", "-o", "-P", _PASSWORD, archive, "-d", content], capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().splitlines() or [f"unzip ended with status {done.returncode}"]
        raise UserError(f"{address}: cannot be unpacked: {reason[0]}")
    archive.unlink()
    return content


def _download(address: str, file: Path) -> None:
    print_line(f"downloading {address}")
    try:
        with urllib.request.urlopen(address, timeout=60) as response, file.open("wb") as out:
            expected = int(response.headers.get("Content-Length", 0))
            with wrap_file(response, expected, console=Console(stderr=True), disable=not sys.stderr.isatty()) as data:
                shutil.copyfileobj(data, out)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{address}: cannot be downloaded: {error}. Try again later, or name another --version."
        ) from error
    if (size := file.stat().st_size) < expected:
        raise UserError(f"{address}: the download ended after {size:,} of {expected:,} bytes. Try again.")


def main(words: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="install_starcraft", description=(__doc__ or "").partition("\n")[0])
    default = Path(os.environ.get("SC2PATH", "~/StarCraftII"))
    parser.add_argument("--folder", type=Path, default=default, help="folder of the game (SC2PATH, else ~/StarCraftII)")
    parser.add_argument("--version", default="4.10", help="version of the game, such as 4.10 or 4.6.2.69232")
    parser.add_argument(
        "--maps", choices=list(MAPS), action="append", help="whose maps; may be repeated (default: smac)"
    )
    parser.add_argument("--game-address", default=GAME, help="folder of the packages of the game")
    parser.add_argument("--maps-address", help="zip file with the maps")
    parser.add_argument("--accept-license", action="store_true", help=f"you agree to {LICENSE}")
    given = parser.parse_args(words)
    if not given.accept_license:
        print_line(f"Read {LICENSE}. If you agree, repeat the command with --accept-license.", sys.stderr)
        return 2
    folder = given.folder.expanduser().absolute()
    try:
        install(
            folder,
            given.version,
            given.maps or ["smac"],
            game=given.game_address,
            maps=lambda family: given.maps_address or MAPS[family],
        )
    except UserError as error:
        print_line(f"install_starcraft: {error}", sys.stderr)
        return 2
    if "SC2PATH" not in os.environ and folder != Path("~/StarCraftII").expanduser():
        print_line(f"Set the environment variable SC2PATH={folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
