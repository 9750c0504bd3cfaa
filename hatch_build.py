"""Compiles the kernel with mypyc into the wheel where STREAMS_COMPILE=1 asks for it; every other build stays pure.

Done in a temporary folder, so no compiled module ever lies beside its source: it would hide every later change of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# What is left out cannot be compiled or means something else when it is: see decision 0021.
LEFT_OUT = {
    "__init__",
    "bodies",
    "changes",
    "codec",
    "commands",
    "definition",
    "graph",
    "inputs",
    "run",
    "vector",
    "won",
}
TOOLS = ["mypy>=1.19", "setuptools>=65"]

SETUP = """
from mypyc.build import mypycify
from setuptools import setup

setup(packages=[], ext_modules=mypycify({modules!r}, group_name="streams", opt_level="2", debug_level="0"))
"""


class CompiledKernel(BuildHookInterface[Any]):
    """hatchling finds it by `[tool.hatch.build.targets.wheel.hooks.custom]`."""

    folder: Path | None = None

    def dependencies(self) -> list[str]:
        return TOOLS if os.environ.get("STREAMS_COMPILE") == "1" else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard" or os.environ.get("STREAMS_COMPILE") != "1":
            return
        compiler = os.environ.get("CC") or (sysconfig.get_config_var("CC") or "cc").split()[0]
        if shutil.which(compiler.split()[0]) is None:
            raise SystemExit(
                f"STREAMS_COMPILE=1 needs a C compiler, and there is no `{compiler}` here; install one (on Debian and "
                "Ubuntu: apt install gcc), name one with CC=..., or build without STREAMS_COMPILE: that wheel does the "
                "same"
            )
        self.folder = Path(tempfile.mkdtemp(prefix="streams-compile-"))
        for built in compile_kernel(Path(self.root), self.folder):
            build_data["force_include"][str(built)] = built.relative_to(self.folder).as_posix()
        build_data["infer_tag"], build_data["pure_python"] = True, False

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        del version, build_data, artifact_path
        if self.folder is not None:
            shutil.rmtree(self.folder)


def compile_kernel(root: Path, folder: Path) -> list[Path]:
    """The extension modules, in `folder` where they belong in the wheel."""
    shutil.copytree(root / "streams", folder / "streams", ignore=shutil.ignore_patterns("__pycache__"))
    kernel = sorted(path for path in (folder / "streams/kernel").glob("*.py") if path.stem not in LEFT_OUT)
    modules = [path.relative_to(folder).as_posix() for path in kernel]
    (folder / "setup.py").write_text(SETUP.format(modules=modules), "utf-8")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the kernel cannot be compiled:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return [path for path in folder.rglob(f"*{suffix}") if "build" not in path.relative_to(folder).parts]
