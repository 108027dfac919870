"""Run a broker in a pod, on port 9092. `ADVERTISED` is the address that clients get; `DATA` is a writable directory."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from queryable_app.local.embedded_kafka import EmbeddedKafka
from queryable_app.platform import jars


class Broker(EmbeddedKafka):
    """Append the pod's settings to the file, since the last of two lines for one setting counts."""

    def _write_settings(self) -> Path:
        file = super()._write_settings()
        with file.open("a") as out:
            out.write("controller.quorum.voters=0@127.0.0.1:9093\n")
            out.write("listeners=PLAINTEXT://0.0.0.0:9092,CONTROLLER://127.0.0.1:9093\n")
            out.write(f"advertised.listeners=PLAINTEXT://{os.environ['ADVERTISED']}\n")
        return file


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    directory = Path(os.environ.get("DATA", "/data"))
    broker = Broker(directory, jars.broker_jars(Path("/opt/kafka")), jars.find_java())
    process = broker.launch()
    try:
        broker.wait_until_ready()
        print("Kafka answers at", os.environ["ADVERTISED"], flush=True)
        while process.exit_code is None:
            time.sleep(0.2)
        sys.exit((directory / "broker.log").read_text()[-2000:])
    finally:
        broker.stop()


if __name__ == "__main__":
    main()
