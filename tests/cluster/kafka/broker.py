"""Run a broker in a pod: for any client on port 9092, and for users with a password on port 9094.

`HOST` is the name that clients use, `USERS` maps users to passwords, as JSON, and `DATA` is a writable directory.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from queryable_app.local.embedded_kafka import EmbeddedKafka
from queryable_app.platform import jars

HOST = os.environ["HOST"]


class Broker(EmbeddedKafka):
    """Append the pod's settings to the file, since the last of two lines for one setting counts."""

    def _write_settings(self) -> Path:
        file = super()._write_settings()
        with file.open("a") as out:
            out.write("controller.quorum.voters=0@127.0.0.1:9093\n")
            out.write(
                "listeners=PLAINTEXT://0.0.0.0:9092,USERS://0.0.0.0:9094,CONTROLLER://127.0.0.1:9093\n"
                f"advertised.listeners=PLAINTEXT://{HOST}:9092,USERS://{HOST}:9094\n"
                "listener.security.protocol.map="
                "PLAINTEXT:PLAINTEXT,USERS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT\n"
                "listener.name.users.sasl.enabled.mechanisms=PLAIN\n"
                "listener.name.users.plain.sasl.jaas.config="
                f"org.apache.kafka.common.security.plain.PlainLoginModule required {_users()};\n"
            )
        return file


def _users() -> str:
    users: dict[str, str] = json.loads(os.environ["USERS"])
    return " ".join(f'user_{name}="{password}"' for name, password in users.items())


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    directory = Path(os.environ.get("DATA", "/data"))
    broker = Broker(directory, jars.broker_jars(Path("/opt/kafka")), jars.find_java())
    process = broker.launch()
    try:
        broker.wait_until_ready()
        print("Kafka answers at", HOST, flush=True)
        while process.exit_code is None:
            time.sleep(0.2)
        sys.exit((directory / "broker.log").read_text()[-2000:])
    finally:
        broker.stop()


if __name__ == "__main__":
    main()
