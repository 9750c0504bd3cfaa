"""The files for Docker, read for tests: services of docker-compose.yml, instructions of the Dockerfile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def broker_properties() -> dict[str, str]:
    """The broker's settings by Kafka's names; the image makes them from its environment in the same way."""
    others = {"KAFKA_HEAP_OPTS"}  # for the scripts that start Java
    environment = SERVICES["kafka"]["environment"]
    return {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in environment.items()
        if name not in others
    }


def instructions() -> list[tuple[str, str]]:
    """Each instruction of the Dockerfile with its arguments."""
    text = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in lines]


def arguments(instruction: str) -> list[str]:
    """Those of an instruction that stands there once, in its JSON form."""
    (found,) = [text for name, text in instructions() if name == instruction]
    words: list[str] = json.loads(found)
    return words


def sources() -> list[str]:
    """What the image is built from, as paths of the repository."""
    copied = [text.split() for name, text in instructions() if name == "COPY" and not text.startswith("--")]
    return [source for words in copied for source in words[:-1]]
