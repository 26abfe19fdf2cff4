"""Build hook: compiles the fused kernels if a C++ compiler is there.

An installation compiles them for this machine, into the folder that the first use would put them in.
`COTERIE_KERNELS=x86-64-v3 pip wheel .` compiles them into the wheel (`make wheel`).
"""

import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sys.path.insert(0, str(Path(self.root) / "src"))
        from coterie.kernels import build  # needs nothing but the standard library

        level = os.environ.get("COTERIE_KERNELS")
        if not level or version == "editable":
            try:
                self.app.display_info(f"Kernels: {build.cached_library()}")
            except build.KernelsUnavailableError as error:
                self.app.display_info(f"Kernels will be compiled at first use: {error}")
            return
        library = Path(tempfile.mkdtemp()) / build.prebuilt_name(level)
        build.compile_library(build.find_compiler(), build.flags_for(level), library)
        library.chmod(0o755)
        build_data["force_include"][str(library)] = f"coterie/kernels/prebuilt/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
