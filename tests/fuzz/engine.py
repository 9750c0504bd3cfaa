"""Runs one target for some time: guided by coverage where atheris is installed, else by hypothesis."""

from __future__ import annotations

import importlib.util
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["fuzz", "has_atheris", "instrument"]

Check = Callable[[bytes], None]
INPUT_BYTES_MAX = 4096
MEMORY_MB_MAX = 2048
"""Of the address space that is added: a length that is read from an input must not become an allocation."""
HANG_SECONDS = 10


def has_atheris() -> bool:
    return importlib.util.find_spec("atheris") is not None


def instrument(load: Callable[[], Any]) -> Any:
    """Import what is tested so that its branches are seen, the generated readers too."""
    import atheris

    with atheris.instrument_imports(
        include=["streams.wire", "streams.log", "streams.cli.parser", "streams.cli.loader"]
    ):
        from streams.wire import binary

        made = binary.Source.function

        def function(self: Any, name: str, arguments: str, lines: list[str]) -> Any:
            made(self, name, arguments, lines)
            self.names[name] = atheris.instrument_func(self.names[name])
            return self.names[name]

        binary.Source.function = function  # type: ignore[method-assign]
        return load()


def fuzz(check: Check, seeds: list[bytes], *, seconds: int, keep: Check) -> NoReturn:
    """Never returns: the fuzzer ends the process, with 0 where nothing was found in time. `keep` gets what was."""
    import atheris

    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(seeds):
            (Path(folder) / f"{number:05}").write_bytes(seed)
        limit_memory()
        arguments = [
            sys.argv[0],
            f"-max_total_time={seconds}",
            f"-max_len={INPUT_BYTES_MAX}",
            f"-timeout={HANG_SECONDS}",
            "-rss_limit_mb=1024",
            f"-artifact_prefix={folder}/",
            "-print_final_stats=1",
            "-verbosity=0",
            folder,
        ]
        atheris.Setup(arguments, _keeping(check, keep))
        atheris.Fuzz()
    sys.exit(0)


def _keeping(check: Check, keep: Check) -> Check:
    """Write down what was found before the fuzzer does: under load its own alarm may come first."""

    def checked(data: bytes) -> None:
        try:
            check(data)
        except BaseException:
            traceback.print_exc()
            keep(data)
            raise

    return checked


def limit_memory() -> None:
    """A large allocation raises MemoryError, which no oracle accepts."""
    used = (
        int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if sys.platform == "linux" else 0
    )
    if used:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_MB_MAX * 2**20, hard))
