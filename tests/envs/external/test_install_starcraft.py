"""Installing StarCraft II and its maps, from a server of small encrypted packages."""

from __future__ import annotations

import functools
import http.server
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.envs.external.install_starcraft import main

pytestmark = pytest.mark.skipif(
    shutil.which("zip") is None or shutil.which("unzip") is None, reason="needs the programs zip and unzip"
)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def packed(archive: Path, files: dict[str, str], password: str = "") -> None:
    """Writes a zip file, encrypted as Blizzard's are if there is a password."""
    source = archive.with_suffix("")
    for name, text in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    program = source / "StarCraftII" / "Versions" / "Base75689" / "SC2_x64"
    if program.exists():
        program.chmod(0o755)
    subprocess.run(["zip", "-qr", *(["-P", password] if password else []), archive, "."], cwd=source, check=True)
    shutil.rmtree(source)


GAME = {"StarCraftII/Versions/Base75689/SC2_x64": "game", "StarCraftII/Maps/Ladder/a.SC2Map": "ladder"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "served"
    folder.mkdir()
    packed(folder / "SC2.4.10.zip", GAME, "iagreetotheeula")
    packed(folder / "SC2.4.9.zip", GAME, "another")
    packed(folder / "SC2.1.zip", {"readme": "no game"})
    packed(folder / "smac.zip", {"SMAC_Maps/3m.SC2Map": "3m", "SMAC_Maps/8m.SC2Map": "8m"})
    packed(folder / "smacv2.zip", {"10gen_terran.SC2Map": "v2", "3m.SC2Map": "3m of v2"})
    packed(folder / "empty.zip", {"readme": "no maps"})
    (folder / "SC2.broken.zip").write_bytes((folder / "SC2.4.10.zip").read_bytes()[:200])
    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        threading.Thread(target=served.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()


def installer(server: str, folder: Path, *words: str, maps: str = "smac.zip") -> int:
    addresses = ("--game-address", server, "--maps-address", f"{server}/{maps}")
    return main(["--accept-license", "--folder", str(folder), *addresses, *words])


def test_the_game_and_its_maps_are_where_smac_looks_for_them(server: str, tmp_path: Path, capsys):
    folder = tmp_path / "games" / "StarCraftII"
    assert installer(server, folder) == 0
    program = folder / "Versions" / "Base75689" / "SC2_x64"
    assert program.read_text() == "game"
    assert program.stat().st_mode & 0o100
    assert {path.name for path in (folder / "Maps" / "SMAC_Maps").iterdir()} == {"3m.SC2Map", "8m.SC2Map"}
    assert [path.name for path in folder.parent.iterdir()] == ["StarCraftII"]
    assert f"SC2PATH={folder}" in capsys.readouterr().out


def test_a_second_installation_adds_maps_and_keeps_the_game(server: str, tmp_path: Path, capsys):
    folder = tmp_path / "StarCraftII"
    assert installer(server, folder) == 0
    (folder / "Versions" / "mine").touch()
    assert installer(server, folder, maps="smacv2.zip") == 0
    assert (folder / "Versions" / "mine").exists()
    maps = folder / "Maps" / "SMAC_Maps"
    assert {path.name: path.read_text() for path in maps.iterdir()} == {
        "10gen_terran.SC2Map": "v2", "3m.SC2Map": "3m of v2", "8m.SC2Map": "8m"
    }  # fmt: skip
    assert "StarCraft II is installed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "maps", "message"),
    [
        (["--version", "5"], "smac.zip", "SC2.5.zip: cannot be downloaded: HTTP Error 404"),
        (["--version", "4.9"], "smac.zip", "SC2.4.9.zip: cannot be unpacked: "),
        (["--version", "broken"], "smac.zip", "SC2.broken.zip: cannot be unpacked: "),
        (["--version", "1"], "smac.zip", "SC2.1.zip: it contains no folder Versions"),
        ([], "empty.zip", "empty.zip: it contains no maps"),
    ],
)
def test_what_is_not_a_package_is_refused_in_one_line(server: str, tmp_path: Path, capsys, words, maps, message):
    folder = tmp_path / "games" / "StarCraftII"
    assert installer(server, folder, *words, maps=maps) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (folder / "Maps" / "SMAC_Maps").exists()
    assert [path.name for path in folder.parent.iterdir()] == (["StarCraftII"] if maps == "empty.zip" else [])


def test_a_folder_with_other_files_is_left_alone(server: str, tmp_path: Path, capsys):
    (tmp_path / "thesis").touch()
    assert installer(server, tmp_path) == 2
    assert "it is not empty" in capsys.readouterr().err
    assert (tmp_path / "thesis").exists()


def test_the_license_has_to_be_accepted(tmp_path: Path, capsys):
    assert main(["--folder", str(tmp_path / "game")]) == 2
    assert "--accept-license" in capsys.readouterr().err
    assert not (tmp_path / "game").exists()
