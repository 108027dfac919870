"""Adapt the machine and its libraries: mounted files, JVM libraries, Kafka clients, log, locks, sockets, the clock.

Each file owns one outside system. `client`, `ingest`, `local`, `serve` and the operator import it.
"""
