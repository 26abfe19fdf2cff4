"""Makes the interpreter that speaks to Unity: `python -m coterie.envs.unity.install [FOLDER]`.

mlagents-envs needs a protobuf of its time, which nothing else here could live with; so it gets a folder of its own. Its
release 1 wants exactly Python 3.10, 0.28 takes any and speaks the same protocol (1.5), so 0.28 it is.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from coterie.envs.unity.player import PLACE

REQUIREMENTS = (
    "mlagents-envs==0.28.0",
    "protobuf==3.20.3",  # generated code of its time is refused from 3.21 on
    "grpcio>=1.60,<2",
    "numpy>=2,<3",  # it says `np.bool`, which releases 1.24 to 1.26 have not
    "Pillow>=10",
)


def install(folder: Path) -> Path:
    """Makes or mends the folder, and returns its interpreter. CalledProcessError if pip fails."""
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not python.exists():
        venv.create(folder, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *REQUIREMENTS], check=True)
    subprocess.run([str(python), "-c", "import mlagents_envs.rpc_communicator"], check=True)
    return python


def main() -> None:
    """The command."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else PLACE)
    try:
        print(f"ready: {install(folder)}")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)


if __name__ == "__main__":
    main()
