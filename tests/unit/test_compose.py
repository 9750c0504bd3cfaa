"""docker-compose.yml and the Dockerfile stay in step with what the tests run without Docker."""

from __future__ import annotations

import re
import tomllib
from urllib.parse import urlsplit

import pytest

from streams.cli.loader import load_file
from streams.cli.parser import LOG_DEFAULT
from streams.dev import kafka, packages, postgres
from streams.effects.subscriber import SubscriberSettings
from streams.log.kafka.settings import parse_url
from streams.runtime import closing
from streams.runtime.settings import WorkerSettings
from tests import compose
from tests.compose import COMPOSE, ROOT, SERVICES

ADDRESSES = {"listeners", "advertised.listeners", "controller.quorum.voters", "log.dirs"}
SCALED = "worker"


def listeners(setting: str) -> dict[str, str]:
    """Name to address."""
    parts = compose.broker_properties()[setting].split(",")
    return dict(part.split("://", 1) for part in parts)


def test_the_versions_are_those_that_the_tests_run():
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{packages.KAFKA_VERSION}"
    assert SERVICES["postgres"]["image"] == f"postgres:{packages._version(packages.postgres_programs())}"


def test_the_broker_has_the_settings_of_the_one_without_docker():
    properties = {name: value for name, value in compose.broker_properties().items() if name not in ADDRESSES}
    protocols = properties.pop("listener.security.protocol.map")
    expected = dict(kafka._BASE)
    assert protocols == expected.pop("listener.security.protocol.map") + ",HOST:PLAINTEXT"
    assert properties == expected
    assert SERVICES["kafka"]["environment"]["KAFKA_HEAP_OPTS"].split() == [o for o in kafka._JVM if o.startswith("-Xm")]


def test_postgres_has_the_user_and_the_database_of_the_one_without_docker():
    environment = SERVICES["postgres"]["environment"]
    assert environment["POSTGRES_USER"] == environment["POSTGRES_DB"] == postgres._NAME


def test_every_published_port_is_for_this_machine_only():
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(published) == 3
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in published)


def test_clients_are_sent_to_addresses_that_they_can_reach():
    bound, advertised = listeners("listeners"), listeners("advertised.listeners")
    assert set(bound) == {*advertised, "CONTROLLER"}
    assert all(address.rpartition(":")[2] == bound[name].rpartition(":")[2] for name, address in advertised.items())
    (port,) = SERVICES["kafka"]["ports"]
    assert advertised["HOST"] == port.rpartition(":")[0], "the port outside is the one that is advertised"
    assert (
        parse_url(SERVICES["worker"]["environment"]["STREAMS_LOG"], environment={}).servers == advertised["PLAINTEXT"]
    )


def test_the_worker_finds_log_provider_and_app(monkeypatch: pytest.MonkeyPatch):
    environment = SERVICES["worker"]["environment"]
    code = "\n".join(path.read_text("utf-8") for path in (ROOT / "streams" / "cli").rglob("*.py"))
    assert all(f'"{name}"' in code for name in ("STREAMS_LOG", "STREAMS_APP"))
    assert environment["STREAMS_LOG"] != LOG_DEFAULT
    assert load_file(ROOT / "examples" / "order.py").app.name == environment["STREAMS_APP"]
    monkeypatch.setenv("ORDERS_PROVIDER", environment["ORDERS_PROVIDER"])
    command = SERVICES["provider"]["command"]
    port = int(command[command.index("--port") + 1])
    assert load_file(ROOT / "examples" / "provider_client.py")._address() == ("provider", port)
    assert SERVICES["provider"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f"127.0.0.1:{port}/health" in SERVICES["provider"]["healthcheck"]["test"][-1]


def test_a_stop_waits_longer_than_a_worker_takes():
    settings = WorkerSettings()
    longest = settings.stop_seconds + settings.drain_seconds + closing._GRACE_SECONDS + closing._PRODUCER_SECONDS
    grace = re.fullmatch(r"(\d+)s", SERVICES["worker"]["stop_grace_period"])
    assert int(grace[1]) >= longest + 5, "a busy machine takes longer than its bounds"


def test_the_subscriber_finds_log_ledger_provider_and_an_app_with_a_worker():
    environment, worker = SERVICES["subscriber"]["environment"], SERVICES["requests"]
    assert load_file(ROOT / "examples" / "order_request.py").app.name == environment["STREAMS_APP"]
    assert environment["STREAMS_APP"] == worker["environment"]["STREAMS_APP"]
    assert SERVICES["subscriber"]["command"][1] == worker["command"][1]
    for name in ("STREAMS_LOG", "ORDERS_PROVIDER"):
        assert environment[name] == SERVICES["worker"]["environment"][name]
    ledger = urlsplit(environment["STREAMS_LEDGER"])
    user = SERVICES["postgres"]["environment"]["POSTGRES_USER"]
    assert (ledger.scheme, ledger.username, ledger.hostname) == ("postgresql", user, "postgres")
    assert (ledger.port, ledger.path) == (5432, f"/{SERVICES['postgres']['environment']['POSTGRES_DB']}")
    assert set(SERVICES["subscriber"]["depends_on"]) == {"kafka", "postgres", "provider"}
    assert SERVICES["subscriber"]["profiles"] == worker["profiles"]


def test_a_stop_waits_longer_than_a_subscriber_takes():
    settings = SubscriberSettings()
    grace = re.fullmatch(r"(\d+)s", SERVICES["subscriber"]["stop_grace_period"])
    assert int(grace[1]) >= settings.stop_seconds + settings.drain_seconds + settings.poll_seconds + 5


def test_the_image_can_reach_a_ledger_in_postgres():
    (extras,) = re.findall(r"\[([\w,]+)\]\"", " ".join(text for name, text in compose.instructions() if name == "RUN"))
    assert "postgres" in extras.split(",")


@pytest.mark.parametrize("name", [SCALED, "requests", "subscriber"])
def test_workers_can_be_scaled(name: str):
    assert not {"container_name", "ports", "volumes"} & set(SERVICES[name]), "one of each would be shared by all"


def test_what_is_depended_on_can_be_found_healthy():
    for service in SERVICES.values():
        for name, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert "healthcheck" in SERVICES[name]


def test_the_volumes_are_declared_and_used():
    mounts = [mount for service in SERVICES.values() for mount in service.get("volumes", ())]
    assert {mount.partition(":")[0] for mount in mounts} == set(COMPOSE["volumes"])
    properties = compose.broker_properties()
    assert f"kafka:{properties['log.dirs']}" in mounts
    (home,) = [text for name, text in compose.instructions() if name == "WORKDIR" and text != "/src"]
    assert f"provider:{home}" in mounts, "a new volume takes its owner from that folder of the image"


def test_the_image_runs_the_worker_as_nobody_special():
    assert (*compose.arguments("ENTRYPOINT"), *compose.arguments("CMD")) == ("streams", *SERVICES["worker"]["command"])
    (user,) = [text for name, text in compose.instructions() if name == "USER"]
    assert int(user) > 0
    (installs,) = [text for name, text in compose.instructions() if name == "RUN" and "useradd" in text]
    assert f"--uid {user}" in installs
    assert "--home-dir /data" in installs


def test_the_image_has_a_python_that_the_package_takes():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    least = tuple(map(int, project["requires-python"].removeprefix(">=").split(".")))
    images = [text.split()[0] for name, text in compose.instructions() if name == "FROM"]
    assert len(set(images)) == 1
    found = re.fullmatch(r"python:(\d+)\.(\d+)-slim", images[0])
    assert (int(found[1]), int(found[2])) >= least
    (extras,) = re.findall(r"\[([\w,]+)\]\"", " ".join(text for name, text in compose.instructions() if name == "RUN"))
    assert {"kafka"} <= set(extras.split(",")) <= set(project["optional-dependencies"])


def test_the_image_is_built_from_what_docker_is_given():
    sources = compose.sources()
    assert all((ROOT / source).exists() for source in sources)
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sorted(let_in) == sorted(sources)
