"""The kernel compiled: the wheel that `make compiled` builds passes the kernel's tests and decides as the pure one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SETTINGS = "[pytest]\npythonpath = .\naddopts = --import-mode=importlib\ntimeout = 300\n"


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=kept | environment, capture_output=True, text=True, check=False
    )


def build(out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    source = out / "source"
    for name in ("streams", "schemas", "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    return run(source, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), ".", **environment)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel unpacked, and beside it the kernel's tests, without the sources of this checkout."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    assert shutil.which(compiler), f"the compiled kernel cannot be tested: there is no C compiler `{compiler}` here"
    folder = tmp_path_factory.mktemp("compiled")
    done = build(folder, STREAMS_COMPILE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    shutil.copytree(ROOT / "tests/kernel", folder / "tests/kernel", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests/unit").mkdir()
    shutil.copy(ROOT / "tests/unit/test_wire_records.py", folder / "tests/unit")
    (folder / "pytest.ini").write_text(SETTINGS)
    return folder


def test_the_wheel_says_that_its_kernel_is_compiled(compiled: Path) -> None:
    done = run(compiled, "-m", "streams", "--version", PYTHONPATH=str(compiled / "site"))
    assert "(compiled kernel)" in done.stdout, done.stderr


def test_the_compiled_kernel_passes_the_tests_of_the_kernel(compiled: Path) -> None:
    done = run(compiled, "-m", "pytest", "-q", "tests/kernel", PYTHONPATH=str(compiled / "site"))
    assert done.returncode == 0, done.stdout[-6000:]


def test_pure_and_compiled_decide_the_same(compiled: Path) -> None:
    pure = run(ROOT, "-m", "tests.kernel.histories", PYTHONPATH=str(ROOT))
    other = run(compiled, "-m", "tests.kernel.histories", PYTHONPATH=str(compiled / "site"))
    assert (pure.stderr, other.stderr) == (".py\n", ".so\n")
    assert len(pure.stdout.splitlines()) == 200
    assert pure.stdout == other.stdout


def test_the_demo_runs_on_the_compiled_kernel(compiled: Path) -> None:
    done = run(compiled, "-m", "streams", "demo", "order", "--approve", PYTHONPATH=str(compiled / "site"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_a_c_compiler_the_build_says_what_to_do(tmp_path: Path) -> None:
    done = build(tmp_path, STREAMS_COMPILE="1", CC="no-such-compiler")
    assert done.returncode != 0
    assert "STREAMS_COMPILE=1 needs a C compiler, and there is no `no-such-compiler` here" in done.stdout + done.stderr


def test_a_plain_build_stays_pure(tmp_path: Path) -> None:
    assert importlib.util.find_spec("hatchling") is not None
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
