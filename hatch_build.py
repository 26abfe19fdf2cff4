"""Build hooks: kernels in the wheel, and addresses of the project.

`COTERIE_KERNELS="x86-64-v3 x86-64-v4" pip wheel .` compiles the fused kernels for these processor levels into the wheel
(`make wheel`). Otherwise the wheel has their source only, and the first run compiles them.
"""

import os
import re
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class KernelsHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        levels = os.environ.get("COTERIE_KERNELS", "").split()
        if not levels or version == "editable":
            return
        sys.path.insert(0, str(Path(self.root) / "src"))
        from coterie.kernels import build  # needs nothing but the standard library

        compiler = build.find_compiler()
        self.folder = tempfile.TemporaryDirectory()
        for level in levels:
            library = Path(self.folder.name) / build.prebuilt_name(level)
            build.compile_library(compiler, build.flags_for(level, compiler), library)
            library.chmod(0o755)
            build_data["force_include"][str(library)] = f"coterie/kernels/prebuilt/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


class AddressesHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        address = repository((root / "CITATION.cff").read_text(), os.environ)
        readme = (root / "README.md").read_text()
        metadata["readme"] = {"content-type": "text/markdown", "text": with_absolute_links(readme, address)}
        metadata["urls"] = urls(address)


def repository(citation: str, environment: Any) -> str | None:
    """Returns the address of the repository: `repository-code` of CITATION.cff, or that of the GitHub workflow."""
    named = re.search(r"^repository-code: *['\"]?([^'\"\s]+)", citation, re.M)
    if named:
        return named[1].rstrip("/")
    if "GITHUB_REPOSITORY" in environment:
        return f"{environment.get('GITHUB_SERVER_URL', 'https://github.com')}/{environment['GITHUB_REPOSITORY']}"
    return None


def urls(address: str | None) -> dict[str, str]:
    """Returns the addresses of the project by label; none without a repository."""
    if address is None:
        return {}
    return {
        "Source": address,
        "Documentation": f"{address}/blob/main/docs/index.md",
        "Changelog": f"{address}/blob/main/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }


def with_absolute_links(text: str, address: str | None) -> str:
    """Returns Markdown whose relative links lead to the repository, as a package index shows it without the files."""
    if address is None:
        return text
    images = r"(!\[[^\]]*\]\(|src=\")(?!\w+:)"
    text = re.sub(images, rf"\g<1>{address}/raw/main/", text)
    return re.sub(r"(\]\()(?!\w+:|#)", rf"\g<1>{address}/blob/main/", text)
