"""Test a node whose Kafka requires TLS and a password, which a mounted Secret alone provides."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from queryable_app.contract import NodeSettings
from queryable_app.placement.assignment import initial_placement
from queryable_app.platform import jars
from queryable_app.platform.processes import free_ports
from tests.integration import topics
from tests.integration.pods import Pod
from tests.integration.system import resource
from tests.integration.system import running as whole_run
from tests.support.certificates import mount_for_localhost
from tests.support.kafka import KafkaForTests, kafka_with_listener
from tests.support.processes import command_and_environment
from tests.support.tokens import SECRET_REF, secret_directory, token
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(600)

PARTITIONS = 2
TOPIC = "secured"
PASSWORD = "correct-horse-battery"
WRONG = "staple-horse-battery"
STORE_PASSWORD = "of-the-broker-alone"


@dataclass(frozen=True)
class Secured:
    broker: KafkaForTests
    bootstrap: str
    """Of the listener with TLS and SASL; `broker.bootstrap` has neither, and is for the test itself."""
    certificate: str


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    store, certificate = make_certificate(directory)
    settings = {
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": jaas(PASSWORD, f'user_reader="{PASSWORD}"'),
        "listener.name.secure.ssl.keystore.type": "PKCS12",
        "listener.name.secure.ssl.keystore.location": str(store),
        "listener.name.secure.ssl.keystore.password": STORE_PASSWORD,
    }
    with kafka_with_listener(directory / "kafka", "SECURE", "SASL_SSL", settings=settings) as (broker, port):
        topics.create(broker.bootstrap, TOPIC, PARTITIONS)
        yield Secured(broker, f"127.0.0.1:{port}", certificate.read_text())


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Make a key, and a certificate that clients trust."""
    keytool, store, pem = jars.find_java().parent / "keytool", directory / "broker.p12", directory / "ca.pem"
    common = [
        "-alias",
        "broker",
        "-keystore",
        str(store),
        "-storetype",
        "PKCS12",
        "-storepass",
        STORE_PASSWORD,
    ]
    make = ["-genkeypair", "-keyalg", "RSA", "-keysize", "2048", "-validity", "10", "-dname", "CN=broker"]
    for command in ([*make, "-ext", "san=ip:127.0.0.1"], ["-exportcert", "-rfc", "-file", str(pem)]):
        subprocess.run([str(keytool), *command, *common], check=True, capture_output=True, timeout=60)
    return store, pem


def jaas(password: str, more: str = "") -> str:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return f'{module} required username="reader" password="{password}" {more};'


def mounted(directory: Path, secured: Secured, password: str) -> None:
    """Lay out a Secret as Kubernetes mounts it: links to links to files, changed by swapping one link."""
    written = directory / f"..{password}"
    written.mkdir(parents=True)
    settings = {
        "security.protocol": "SASL_SSL\n",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": jaas(password) + "\n",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": secured.certificate,
    }
    for name, value in settings.items():
        (written / name).write_text(value)
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")
    (directory / "..new").symlink_to(written.name)
    (directory / "..new").rename(directory / "..data")


@contextmanager
def running(directory: Path, bootstrap: str, secret: Path, drain_seconds: int = 0) -> Iterator[Pod]:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    spec: Mapping[str, Any] = {
        "kafka": {"bootstrapServers": bootstrap, "secretRef": {"name": "kafka-client"}},
        "topic": TOPIC,
        "read": {"ingest": True},
    }
    (directory / "spec.json").write_text(json.dumps(spec))
    placement = initial_placement("tests.secured.r1", PARTITIONS, [url], 1)
    (directory / "placement.json").write_text(placement.to_json())
    node = NodeSettings(
        name="secured-r1-0",
        ordinal=0,
        application_id="tests.secured.r1",
        spec_path=str(directory / "spec.json"),
        kafka_secret_dir=str(secret),
        bootstrap_servers=bootstrap,
        advertised_url=url,
        data_dir=str(directory / "data"),
        run_dir=str(directory / "run"),
        placement_path=str(directory / "placement.json"),
        cache_dir=os.environ.get("QT_CACHE_DIR", ""),
        http_host="127.0.0.1",
        http_port=port,
        drain_seconds=drain_seconds,
    )
    pod = Pod(node, directory)
    try:
        yield pod
    finally:
        pod.kill()


def test_secret_password_opens_kafka_and_is_never_shown(secured: Secured, tmp_path: Path) -> None:
    """Rows and records pass through TLS and SASL, and a restart reads a rotated password; no status, metric, log, environment
    or file shows a password.
    """
    secret = tmp_path / "secret"
    mounted(secret, secured, WRONG)
    topics.produce(secured.broker.bootstrap, TOPIC, [(b"a", b'{"n":1}'), (b"b", b'{"n":2}')])
    with running(tmp_path, secured.bootstrap, secret) as pod:
        eventually(f"ingest waits for Kafka\n{pod.logs()}", lambda: pod.ingest_is("waiting-for-kafka"), 90)
        refused = pod.status()
        assert "uthentication" in refused["ingest"]["detail"], refused["ingest"]

        mounted(secret, secured, PASSWORD)
        pod.restart()
        eventually(f"ingest streams\n{pod.logs()}", lambda: pod.ingest_is("streaming"), 90)
        eventually("the node is ready", lambda: pod.http.get("/readyz").status_code == 200)
        assert pod.http.get("/v1/keys/b?consistency=strong&deadline-ms=30000").json() == {"n": 2}
        written = pod.http.post("/v1/records?deadline-ms=20000", json={"key": "c", "value": {"n": 3}})
        assert written.status_code == 200, written.text
        answer = pod.http.get(f"/v1/keys/c?min-position={written.json()['position']}&deadline-ms=20000")
        assert answer.json() == {"n": 3}

        output = json.dumps([refused, pod.status()]) + pod.http.get("/metrics").text + pod.logs()
        family = [command_and_environment(process) for process in pod.family()]
        assert sum("queryable_app" in one for one in family) >= 2, "serve and ingest, at the least"
        assert any("PythonGatewayServer" in one for one in family), "and the JVM"
        output += "".join(family)
        for file in tmp_path.rglob("*"):
            if file.is_file() and secret not in file.parents:
                output += file.read_bytes().decode("latin-1")
    assert PASSWORD not in output
    assert WRONG not in output


def test_draining_node_reads_new_records(secured: Secured, tmp_path: Path) -> None:
    """After SIGTERM to both processes, ingest feeds serve until serve ends, and then both exit."""
    secret = tmp_path / "secret"
    mounted(secret, secured, PASSWORD)
    topics.produce(secured.broker.bootstrap, TOPIC, [(b"early", b'{"n":4}')])
    with running(tmp_path, secured.bootstrap, secret, drain_seconds=15) as pod:
        eventually(f"a record is read\n{pod.logs()}", lambda: _has(pod, "early"), 180)
        pod.serve.send_signal(signal.SIGTERM)
        pod.ingest.send_signal(signal.SIGTERM)
        eventually("the node drains", lambda: pod.status()["draining"])
        topics.produce(secured.broker.bootstrap, TOPIC, [(b"late", b'{"n":4}')])
        answer = pod.http.get("/v1/keys/late?consistency=strong&deadline-ms=10000")
        assert (answer.status_code, answer.json()) == (200, {"n": 4})
        assert (pod.serve.wait(40), pod.ingest.wait(40)) == (0, 0), pod.logs()


def _has(pod: Pod, key: str) -> bool:
    """Tell whether the pod answers with the key's row."""
    try:
        return pod.http.get(f"/v1/keys/{key}").status_code == 200
    except httpx.TransportError:  # it starts
        return False


def test_run_finds_every_secret_in_a_directory(secured: Secured, tmp_path: Path) -> None:
    """With --secrets, `qtopic run` opens Kafka, serves HTTPS and verifies tokens, each by the Secret that the resource names."""
    topics.create(secured.broker.bootstrap, "three-secrets", 1)
    topics.produce(secured.broker.bootstrap, "three-secrets", [(b"a", b'{"n":1}')])
    root = tmp_path / "secrets"
    mounted(root / "kafka-client", secured, PASSWORD)
    mount_for_localhost(root / "users-tls")
    secret_directory(root / "jwt")
    document = resource(
        "three-secrets",
        secured.bootstrap,
        tls={"secretRef": {"name": "users-tls"}},
        auth={"jwt": SECRET_REF, "rules": [{"claim": "scope", "contains": "read", "allow": ["read"]}]},
    )
    document["spec"]["kafka"]["secretRef"] = {"name": "kafka-client"}
    with whole_run(document, tmp_path / "run", "--secrets", str(root)) as system:
        read = [sys.executable, "-m", "queryable_app.cli", "get", "a", "--data", str(system.data)]

        def get(**variables: str) -> tuple[int, str]:
            environ = {**os.environ, **variables}
            done = subprocess.run(read, capture_output=True, text=True, timeout=60, env=environ)
            return done.returncode, done.stdout

        eventually(
            "the record is read with a token", lambda: get(QTOPIC_TOKEN=token()) == (0, '{"n":1}\n'), 120
        )
        assert get()[0] != 0
        assert get(QTOPIC_TOKEN=token(b"x" * 32))[0] != 0
