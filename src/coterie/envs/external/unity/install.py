"""Creates the interpreter for Unity: `python -m coterie.envs.external.unity.install [FOLDER]`.

mlagents-envs needs an old protobuf that conflicts with other packages, so it gets a virtual environment of its own.
Release 1 requires exactly Python 3.10. Release 0.28 runs on any Python and has the same protocol (1.5).
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from coterie.envs.external.unity.client import VENV

REQUIREMENTS = (
    "mlagents-envs==0.28.0",
    "protobuf==3.20.3",  # later releases reject its generated code
    "grpcio>=1.60,<2",
    "numpy>=2,<3",  # it uses `np.bool`, which is missing from 1.24 to 1.26
    "Pillow>=10",
)


def install(folder: Path) -> Path:
    """Creates or repairs the virtual environment, and returns its interpreter. CalledProcessError if pip fails."""
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not python.exists():
        venv.create(folder, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *REQUIREMENTS], check=True)
    subprocess.run([str(python), "-c", "import mlagents_envs.rpc_communicator"], check=True)
    return python


def main() -> None:
    """Runs the command."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else VENV)
    try:
        print(f"ready: {install(folder)}")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)


if __name__ == "__main__":
    main()
