"""Run the operator: parse its options, check its prerequisites, and serve resources until a signal."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import kopf

from queryable_app.platform import log
from queryable_app.platform.core_dumps import forbid_core_dumps
from queryable_operator.act import handlers, preflight
from queryable_operator.act.cluster import Cluster, NoCluster, configuration
from queryable_operator.act.election import Election, LeaseLost
from queryable_operator.act.metrics import Health, Metrics, serve
from queryable_operator.act.nodes import Nodes
from queryable_operator.act.reconciler import Dependencies, Reconcilers
from queryable_operator.act.resync import Resync
from queryable_operator.act.supervision import supervised
from queryable_operator.act.topics import Topics
from queryable_operator.act.watch_cache import WatchCache
from queryable_operator.decide.plan import plan
from queryable_operator.spec import names
from queryable_operator.spec.settings import OperatorSettings

_LOG: Final = logging.getLogger("queryable_operator")
_OWN_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_EVENT_LOOP_REPORT_SECONDS: Final = 5.0
_END_SECONDS: Final = 10.0
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Options:
    namespaces: tuple[str, ...]
    settings: OperatorSettings
    lease: tuple[str, str] | None  # namespace and name
    port: int
    interval_seconds: float


def _namespaces(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    found = tuple(sorted({part.strip() for part in value.split(",") if part.strip()}))
    for namespace in found:
        if _NAMESPACE.fullmatch(namespace) is None:
            raise click.BadParameter(f"{namespace!r} is not the name of a namespace")
    return found


@click.command(
    name="queryable_operator",
    context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]},
    epilog="The cluster is that of the pod's service account, or of KUBECONFIG.",
)
@click.option(
    "--node-image",
    envvar="QT_OPERATOR_NODE_IMAGE",
    show_envvar=True,
    required=True,
    help="The image of query nodes for resources that name none.",
)
@click.option(
    "--namespaces",
    envvar="QT_OPERATOR_NAMESPACES",
    show_envvar=True,
    default="",
    callback=_namespaces,
    help="Namespaces to serve, separated by commas. Empty: all of them.",
)
@click.option(
    "--cluster-domain",
    envvar="QT_OPERATOR_CLUSTER_DOMAIN",
    show_envvar=True,
    default="cluster.local",
    show_default=True,
    help="The domain of the cluster's own DNS names.",
)
@click.option(
    "--leader-election/--no-leader-election",
    envvar="QT_OPERATOR_LEADER_ELECTION",
    show_envvar=True,
    default=False,
    show_default=True,
    help="Act only while holding a Lease. Required with more than one replica: the others stand by.",
)
@click.option(
    "--lease-name",
    envvar="QT_OPERATOR_LEASE_NAME",
    show_envvar=True,
    default=names.FIELD_MANAGER,
    show_default=True,
    help="The name of the Lease.",
)
@click.option(
    "--lease-namespace",
    envvar="QT_OPERATOR_LEASE_NAMESPACE",
    show_envvar=True,
    default="",
    help="The namespace of the Lease. Empty: the pod's own, else the first one served, else default.",
)
@click.option(
    "--metrics-port",
    envvar="QT_OPERATOR_METRICS_PORT",
    show_envvar=True,
    type=click.IntRange(0, 65535),
    default=8081,
    show_default=True,
    help="The port of /metrics and /healthz. 0: any free port.",
)
@click.option(
    "--reconcile-seconds",
    envvar="QT_OPERATOR_RECONCILE_SECONDS",
    show_envvar=True,
    type=click.FloatRange(1, 120),
    default=10.0,
    show_default=True,
    help="The longest time between two reconcile passes of a resource.",
)
@click.option(
    "--log-format",
    envvar="QT_OPERATOR_LOG_FORMAT",
    show_envvar=True,
    type=click.Choice(["json", "text"]),
    default=None,
    help="One JSON object or one sentence a line. Absent: text at a terminal, else json.",
)
@click.option(
    "--verbose", envvar="QT_OPERATOR_VERBOSE", show_envvar=True, is_flag=True, help="Log debug messages."
)
def main(
    node_image: str,
    namespaces: tuple[str, ...],
    cluster_domain: str,
    leader_election: bool,
    lease_name: str,
    lease_namespace: str,
    metrics_port: int,
    reconcile_seconds: float,
    log_format: log.LogFormat | None,
    verbose: bool,
) -> None:
    """Turns QueryableTopics into running views: one process for all of them, or for those of some namespaces.

    It has no state of its own: it can stop at any moment and resumes after a restart.
    """
    forbid_core_dumps()
    log.configure(
        log_format,
        level=logging.DEBUG if verbose else logging.INFO,
        library_level=logging.INFO if verbose else logging.WARNING,
    )
    namespace = lease_namespace or _own_namespace() or next(iter(namespaces), "default")
    options = Options(
        namespaces,
        OperatorSettings(node_image, cluster_domain, _own_namespace()),
        (namespace, lease_name) if leader_election else None,
        metrics_port,
        reconcile_seconds,
    )
    try:
        asyncio.run(_run(options))
    except (NoCluster, preflight.PreflightFailed, OSError) as error:
        click.echo(str(error), err=True)
        _exit_now(1)
    except asyncio.CancelledError:
        pass
    except Exception:
        _LOG.exception("The operator cannot continue and must be restarted")
        _exit_now(1)
    _exit_now(0)


def _exit_now(status: int) -> None:
    """End the process at once: threads that wait for an unreachable API server would delay a normal exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _own_namespace() -> str:
    with suppress(OSError):
        return _OWN_NAMESPACE.read_text().strip()
    return ""


async def _run(options: Options) -> None:
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me is not None
    for number in (signal.SIGTERM, signal.SIGINT):  # kopf replaces these handlers once it runs
        loop.add_signal_handler(number, me.cancel)
    cluster = Cluster(configuration())
    await preflight.check(cluster, options.namespaces, options.lease)
    metrics, health = Metrics(), Health()
    server = serve(options.port, metrics, health)
    _LOG.info("/metrics and /healthz are at port %d", server.server_port)
    reporting = asyncio.create_task(_report_event_loop(health))
    election = Election(cluster, *options.lease, _identity()) if options.lease else None
    try:
        if election is not None:
            await election.acquire()
        await _serve_resources(options, cluster, metrics, health, election)
    finally:
        reporting.cancel()
        if election is not None:
            await election.release()
        cluster.close()
        server.shutdown()


async def _serve_resources(
    options: Options, cluster: Cluster, metrics: Metrics, health: Health, election: Election | None
) -> None:
    """Reconcile resources until a signal, or until another operator may act."""
    reconcilers = Reconcilers()
    watch_cache = WatchCache(not options.namespaces, reconcilers.wake)
    nodes = Nodes()
    reconcilers.dependencies = Dependencies(
        cluster,
        watch_cache,
        nodes,
        Topics(options.settings.cluster_domain),
        metrics,
        health,
        options.settings,
        plan,
        options.interval_seconds,
    )
    kinds = handlers.kinds(options.namespaces)
    resync = Resync(cluster, watch_cache, reconcilers, health, kinds, options.namespaces)
    background = [asyncio.create_task(supervised("The resync of watches", resync.run))]
    if election is not None:
        background.append(asyncio.create_task(_keep_lease(election)))
    operator = asyncio.create_task(
        kopf.operator(
            registry=handlers.registry(cluster, reconcilers, watch_cache, kinds),
            settings=handlers.settings(),
            **handlers.namespaced(options.namespaces),
        )
    )
    try:
        done, _ = await asyncio.wait({operator, *background}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (operator, *background):
            task.cancel()
        await asyncio.wait({operator, *background}, timeout=_END_SECONDS)
        await nodes.close()


async def _keep_lease(election: Election) -> None:
    try:
        await election.keep()
    except LeaseLost as error:
        _LOG.error("This operator ends, so that only one acts: %s", error)
        _exit_now(1)  # ends requests in progress, too


async def _report_event_loop(health: Health) -> None:
    while True:
        health.event_loop_turned()
        await asyncio.sleep(_EVENT_LOOP_REPORT_SECONDS)


def _identity() -> str:
    return f"{socket.gethostname()}_{secrets.token_hex(4)}"


if __name__ == "__main__":
    main()
