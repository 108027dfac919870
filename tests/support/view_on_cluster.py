"""Control a view on the cluster that KUBECONFIG names, and read from it; `platform_on_cluster` provides what it needs."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from queryable_operator.spec import names
from tests.support.cluster import Namespace, Refused
from tests.support.waiting import eventually

RELEASE = "qt"
OPERATOR = "deploy/qt-queryable-topics"
SECONDS = 600.0
"""The limit of each wait: a JVM starts in a minute on a busy machine."""

KAFKA_USERS: Mapping[str, str] = {"first": "the-first-password", "second": "the-second-password"}
"""The users, with their passwords, of the port 9094 of the Kafka on the cluster."""

# The smallest resources that nodes need, so that a laptop has room for them, and no idle delays.
SMALL: Mapping[str, Any] = {
    "kafka": {"bootstrapServers": "kafka:9092"},
    "read": {"maxLagMs": 120_000},
    "storage": {"size": "1Gi"},
    "rollout": {"stable": "1s"},
    "podTemplate": {
        "resources": {
            "serve": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "768Mi"}},
            "ingest": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "1200Mi"}},
        }
    },
}


@dataclass
class Reading:
    """Contain what the readers have seen so far."""

    reads: int = 0
    failures: list[Mapping[str, Any]] = field(default_factory=list)
    over: bool = False
    wrong: Sequence[str] = ()
    """Keys that in the end did not have their newest value."""

    @property
    def of_keys_that_were_not_found(self) -> list[Mapping[str, Any]]:
        """Return the wrong answers: an existing key as missing, or an older value. An unreachable replica does not excuse
        them.
        """
        return [failure for failure in self.failures if failure["status"] in (200, 404)]

    def __str__(self) -> str:
        kinds = Counter(f"{failure['status']} {str(failure['value'])[:60]}" for failure in self.failures)
        return f"{self.reads} reads, {len(self.failures)} failed: {dict(kinds)}"


@dataclass(frozen=True)
class Caller:
    """Name the files in the clients' pod that their requests to a view need. Empty: they need none."""

    ca: str = ""
    """The CA of a view with TLS. Empty: the view has plain HTTP."""
    token_file: str = ""
    certificate: str = ""
    """The clients' own, with its key."""

    @property
    def program(self) -> tuple[str, ...]:
        given = {"CA": self.ca, "TOKEN_FILE": self.token_file, "CERTIFICATE": self.certificate}
        variables = [f"{name}={file}" for name, file in given.items() if file]
        return ("env", *variables, "python", "/clients/clients.py")


WITHOUT_FILES = Caller()


@dataclass(frozen=True)
class Platform:
    """Represent a namespace with a Kafka, views and clients, and the namespace of their operator."""

    namespace: Namespace
    operators: Namespace
    image: str

    def clients(
        self, command: str, *arguments: str, stdin: str = "", caller: Caller = WITHOUT_FILES
    ) -> list[dict[str, Any]]:
        """Run a command of the clients."""
        run = ("exec", "--stdin", "clients", "--", *caller.program, command, *arguments)
        output = self.namespace.kubectl(*run, stdin=stdin, timeout=SECONDS)
        return [json.loads(line) for line in output.splitlines() if line.startswith("{")]

    def trust(self, name: str, ca: bytes) -> str:
        """Write the certificate of a CA into the clients' pod, and return the file."""
        return self.write(f"{name}.pem", ca.decode())

    def write(self, name: str, text: str) -> str:
        """Write a file into the clients' pod at once, and return its path."""
        file = f"/tmp/{name}"
        script = f"cat > {file}.new && mv {file}.new {file}"
        self.namespace.kubectl("exec", "--stdin", "clients", "--", "sh", "-c", script, stdin=text)
        return file

    def write_secret(self, name: str, data: Mapping[str, bytes], kind: str = "Opaque") -> None:
        encoded = {key: base64.b64encode(content).decode() for key, content in data.items()}
        about = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind}
        self.namespace.kubectl("apply", "--filename", "-", stdin=json.dumps({**about, "data": encoded}))

    def listed(self, kind: str, name: str = "", **parameters: str) -> Any:
        return self.namespace.listed(kind, name, **parameters)

    def make_topic(self, name: str, partitions: int = 4) -> None:
        self.clients("topic", name, str(partitions))

    def produce(self, topic: str, values: Mapping[str, str]) -> None:
        """Produce records; an empty value deletes."""
        self.clients("produce", topic, stdin="".join(f"{key}\t{value}\n" for key, value in values.items()))

    def in_kafka(self, prefix: str) -> list[str]:
        """Return the groups and topics in Kafka with this prefix."""
        ((found),) = self.clients("left", prefix)
        there: list[str] = found["there"]
        return there

    def kill_operator(self) -> None:
        """Kill the operator without a grace period; its Deployment replaces it."""
        selector = "--selector=app.kubernetes.io/instance=qt"
        self.operators.kubectl("delete", "pod", selector, "--force", "--grace-period=0")

    def operator_answers(self) -> None:
        self.operators.kubectl("rollout", "status", OPERATOR, "--timeout=300s", timeout=SECONDS)

    def story(self) -> str:
        """Return the diagnostics of a failed wait."""
        commands = (
            (self.namespace, "get", "qt,pods,pvc", "--output=wide"),
            (self.namespace, "get", "events", "--sort-by=.lastTimestamp", "--output=custom-columns="
             "AT:.lastTimestamp,OF:.involvedObject.name,REASON:.reason,MESSAGE:.message"),
            (self.namespace, "get", "qt",
             "--output=jsonpath={range .items[*]}{.metadata.name}{': '}{.status}{'\\n'}{end}"),
            (self.operators, "logs", OPERATOR, "--tail=40"),
        )  # fmt: skip
        sections = []
        for namespace, *arguments in commands:
            with suppress(Refused, subprocess.TimeoutExpired):
                sections.append("\n".join(namespace.kubectl(*arguments).splitlines()[-60:]))
        return "\n\n".join(sections)

    def eventually(self, what: str, so: Callable[[], bool], seconds: float = SECONDS) -> None:
        eventually(what, so, seconds, story=self.story)


@dataclass(frozen=True)
class ViewOnCluster:
    """Represent a QueryableTopic and a user's actions on it."""

    platform: Platform
    name: str
    topic: str
    caller: Caller = WITHOUT_FILES
    """The files that the clients' requests to it need."""

    @property
    def url(self) -> str:
        return f"{'https' if self.caller.ca else 'http'}://{self.name}:8080"

    @property
    def namespace(self) -> Namespace:
        return self.platform.namespace

    def apply(self, spec: Mapping[str, Any] = SMALL) -> None:
        resource = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": self.name},
            "spec": {"topic": self.topic, **spec},
        }
        self.namespace.kubectl("apply", "--filename", "-", stdin=json.dumps(resource))

    def patch(self, **spec: Any) -> None:
        patch = json.dumps({"spec": spec})
        self.namespace.kubectl("patch", "qt", self.name, "--type=merge", "--patch", patch)

    def scale(self, replicas: int) -> None:
        self.namespace.kubectl("scale", "qt", self.name, f"--replicas={replicas}")

    def wait_until_available(self) -> None:
        try:
            self.namespace.kubectl(
                "wait", "--for=condition=Available", f"qt/{self.name}", f"--timeout={SECONDS:.0f}s",
                timeout=SECONDS + 10,
            )  # fmt: skip
        except Refused as refused:
            raise AssertionError(f"{refused}\n\n{self.platform.story()}") from refused

    def wait_until_settled(self) -> None:
        """Wait until the operator has observed the present spec and completed every change."""
        self.platform.eventually(f"{self.name} is settled", self._is_settled)

    def _is_settled(self) -> bool:
        live = self.get()
        status, wanted = live.get("status", {}), live["spec"].get("replicas", 1)
        conditions = {c["type"]: (c["status"], c["observedGeneration"]) for c in status.get("conditions", ())}
        generation = live["metadata"]["generation"]
        return (
            status.get("phase") == "Ready"
            and status.get("nodes") == f"{wanted}/{wanted}"
            and all(conditions.get(kind) == ("True", generation) for kind in ("Available", "Hydrated"))
            and all(conditions.get(kind) == ("False", generation) for kind in ("Progressing", "Degraded"))
            and len(self.pods()) == wanted
        )

    def get(self) -> dict[str, Any]:
        found: dict[str, Any] = self.platform.listed("qt", f"/{self.name}")
        return found

    @property
    def status(self) -> Mapping[str, Any]:
        status: Mapping[str, Any] = self.get().get("status", {})
        return status

    @property
    def active(self) -> str:
        return str(self.status["active"]["revision"])

    def pod(self, ordinal: int) -> str:
        return f"{self.name}-{self.active}-{ordinal}"

    def pods(self) -> dict[str, Mapping[str, Any]]:
        """Return the pods of the view's nodes by name."""
        return {
            o["metadata"]["name"]: o
            for o in self.live("pod")
            if names.REVISION_LABEL
            in o["metadata"]["labels"]  # the rekey job and its executors have another label
        }

    def live(self, kind: str) -> list[Mapping[str, Any]]:
        """Return the view's children of one kind, or of several, separated by commas."""
        ours = f"{names.VIEW_LABEL}={self.name}"
        return [
            live
            for each in kind.split(",")
            for live in self.platform.listed(each, labelSelector=ours)["items"]
        ]

    def placement(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads(
            self.platform.listed("configmap", f"/{self.name}-{self.active}")["data"]["placement.json"]
        )
        return found

    def values(self, *keys: str) -> dict[str, tuple[int, Any]]:
        """Return status and value of each key, read through the Service now."""
        answers = self.platform.clients("get", self.url, *keys, caller=self.caller)
        return {each["key"]: (each["status"], each["value"]) for each in answers}

    def uids(self) -> dict[str, str]:
        """Return the UIDs of the view's pods by name."""
        return {name: pod["metadata"]["uid"] for name, pod in self.pods().items()}

    def events(self) -> Counter[str]:
        """Count the view's events by reason."""
        about = f"involvedObject.kind={names.KIND},involvedObject.name={self.name}"
        return Counter(e["reason"] for e in self.platform.listed("event", fieldSelector=about)["items"])

    def execute(self, ordinal: int, container: str, *command: str) -> str:
        return self.namespace.kubectl("exec", self.pod(ordinal), "--container", container, "--", *command)

    def bring_secrets(self) -> None:
        """Let the kubelets bring changed Secrets now: they look at a changed pod at once, and else about every minute."""
        for pod in self.pods():
            self.namespace.kubectl("annotate", "pod", pod, f"example.com/at={time.time()}", "--overwrite")

    def delete(self) -> None:
        self.namespace.kubectl("delete", "qt", self.name, f"--timeout={SECONDS:.0f}s", timeout=SECONDS + 10)

    @contextmanager
    def reading(self, how: str = "read") -> Iterator[Reading]:
        """Read and write steadily during the block; at the end every key must have its newest value."""
        command = ("kubectl", "--namespace", self.namespace.name, "exec", "--stdin", "clients", "--")
        script = (*self.caller.program, how, self.url, self.topic)
        seen, complaints = Reading(), list[str]()
        with subprocess.Popen(
            [*command, *script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdin is not None
            listener = threading.Thread(target=_listen, args=(process, seen, complaints))
            listener.start()
            try:
                self.platform.eventually(
                    "reads have begun", lambda: seen.reads > 0 or process.poll() is not None
                )
                yield seen
            finally:
                process.stdin.close()
                listener.join(SECONDS)
                process.terminate()
                listener.join()
        print(f"\n{self.name}: {seen}")
        assert seen.over, f"the readers ended early: {''.join(complaints[-20:])}\n{self.platform.story()}"
        assert not seen.wrong, f"{seen.wrong}\n{self.platform.story()}"

    @contextmanager
    def no_read_fails(self, how: str = "read") -> Iterator[Reading]:
        """Check that no read fails until the changes of the block have settled. `how` is the readers' command."""
        with self.reading(how) as seen:
            yield seen
            self.wait_until_settled()
        assert not seen.failures, f"{seen}\n{seen.failures[:10]}\n{self.platform.story()}"


def is_ready(pod: Mapping[str, Any] | None) -> bool:
    there = (pod or {}).get("status", {}).get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in there)


def _listen(process: subprocess.Popen[str], seen: Reading, complaints: list[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if not line.startswith("{"):
            complaints.append(line)
            continue
        event = json.loads(line)
        if "status" in event:
            seen.failures.append(event)
        seen.reads = event.get("reads", seen.reads)
        if "over" in event:
            seen.over, seen.wrong = True, event["wrong"]


@contextmanager
def available_view(
    platform: Platform, name: str, spec: Mapping[str, Any] = SMALL, caller: Caller = WITHOUT_FILES
) -> Iterator[ViewOnCluster]:
    """Create a view of a new topic with its name, wait until it is available, and delete it at the end of the block."""
    view = ViewOnCluster(platform, name, name, caller)
    platform.make_topic(view.topic)
    view.apply(spec)
    view.wait_until_available()
    yield view
    view.delete()
