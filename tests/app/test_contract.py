"""Test a node's settings as environment variables."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.contract import NodeSettings, SettingsError, worker_settings

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
SETTINGS = st.builds(
    NodeSettings,
    **{f.name: TEXTS if f.type == "str" else st.integers(0, 999_999_999) for f in fields(NodeSettings)},
)


def small() -> NodeSettings:
    return NodeSettings(
        name="users-r1-0",
        ordinal=0,
        application_id="default.users.r1",
        spec_path="/etc/qt/spec.json",
        bootstrap_servers="kafka:9092",
        advertised_url="http://users-r1-0:8080",
        data_dir="/data",
        run_dir="/run/qt",
        placement_path="/etc/qt/placement.json",
    )


@given(SETTINGS)
def test_settings_survive_the_environment(settings: NodeSettings) -> None:
    """A node reads the settings that the process which starts it wrote."""
    assert NodeSettings.from_env(settings.to_env()) == settings


def test_variable_is_the_field_with_a_prefix() -> None:
    """Every variable is QT_ and the field's name in capitals."""
    assert set(small().to_env()) == {"QT_" + f.name.upper() for f in fields(NodeSettings)}


def test_absent_variable_has_its_default() -> None:
    """Every variable may be absent except those of settings without a default."""
    required = {
        name: text for name, text in small().to_env().items() if getattr(small(), name[3:].lower()) != 8080
    }
    assert "QT_HTTP_PORT" not in required
    assert NodeSettings.from_env(required) == small()


def test_other_variables_are_ignored() -> None:
    """A variable without a field changes nothing."""
    assert NodeSettings.from_env(small().to_env() | {"PATH": "/bin", "QT_UNKNOWN": "x"}) == small()


def test_missing_variable_is_named() -> None:
    """The error names the required variable that is not set."""
    environ = small().to_env()
    del environ["QT_APPLICATION_ID"]
    with pytest.raises(SettingsError, match="QT_APPLICATION_ID is not set"):
        NodeSettings.from_env(environ)


@pytest.mark.parametrize(
    "text", ["", "eighty", "8.5", "-1", "--5", " 80", "²", "٤", "1_000", "9" * 10_000], ids=ascii
)
def test_wrong_number_is_named(text: str) -> None:
    """The error names the variable that is no whole number, and its value."""
    with pytest.raises(SettingsError, match="QT_HTTP_PORT must be a whole number of at most 9 digits, not '"):
        NodeSettings.from_env(small().to_env() | {"QT_HTTP_PORT": text})


def test_settings_hold_no_secret() -> None:
    """No field holds a token or password; fields that name one are paths."""
    secretive = [
        f.name
        for f in fields(NodeSettings)
        if any(word in f.name for word in ("token", "password", "secret"))
    ]
    assert secretive == ["kafka_secret_dir", "auth_secret_dir", "internal_token_path"]


PORTS = st.lists(st.integers(1, 65_535), min_size=1, max_size=64, unique=True)


def pod(ports: list[int], ordinal: int = 0, **settings: object) -> NodeSettings:
    port = next(port for port in range(8080, 8200) if port not in ports)
    text = ",".join(map(str, ports))
    return replace(small(), ordinal=ordinal, http_port=port, worker_ports=text, **settings)  # type: ignore[arg-type]


@given(SETTINGS)
def test_pod_without_worker_ports_is_one_node(settings: NodeSettings) -> None:
    """A pod without worker ports has one node, with the pod's own settings."""
    settings = replace(settings, worker_ports="")

    assert worker_settings(settings) == (settings,)


@given(PORTS, st.integers(0, 500))
def test_workers_share_nothing_but_the_front_port(ports: list[int], ordinal: int) -> None:
    """Each worker has its own name, ordinal, port, address and directories, and the pod's port as its front port."""
    of_pod = pod(ports, ordinal)
    workers = worker_settings(of_pod)

    assert [worker.http_port for worker in workers] == ports
    assert [worker.advertised_url for worker in workers] == [f"http://users-r1-0:{port}" for port in ports]
    assert {worker.front_port for worker in workers} == {of_pod.http_port}
    for field in ("name", "ordinal", "data_dir", "run_dir"):
        assert len({getattr(worker, field) for worker in workers}) == len(ports)
    assert {worker.pod_name for worker in workers} == {of_pod.name}
    assert all(worker_settings(worker) == (worker,) for worker in workers)


@given(PORTS, st.integers(0, 500))
def test_ordinals_of_pods_follow_each_other(ports: list[int], ordinal: int) -> None:
    """The workers of consecutive pods have consecutive ordinals, and each worker knows those of its pod."""
    workers, following = worker_settings(pod(ports, ordinal)), worker_settings(pod(ports, ordinal + 1))
    count = len(ports)

    assert [worker.ordinal for worker in workers] == list(range(ordinal * count, (ordinal + 1) * count))
    assert following[0].ordinal == workers[-1].ordinal + 1
    assert all(list(worker.pod_ordinals) == [each.ordinal for each in workers] for worker in workers)


@given(st.lists(st.integers(1, 65_535), min_size=1, max_size=8, unique=True))
def test_workers_share_out_the_memory_of_the_pod(ports: list[int]) -> None:
    """Up to eight workers have together no more caches, connections, bodies and answers than their pod."""
    of_pod = pod(ports)
    workers = worker_settings(of_pod)

    for field in (
        "block_cache_mb",
        "write_buffer_mb",
        "connections_max",
        "bodies_bytes_max",
        "untaken_bytes_max",
        "peer_copy_mb_per_second_max",
    ):
        together = sum(getattr(worker, field) for worker in workers)
        assert getattr(of_pod, field) * 0.9 < together <= getattr(of_pod, field), field


@given(PORTS, st.integers(1, 4 << 20))
def test_every_worker_has_room_for_the_largest_body(ports: list[int], largest: int) -> None:
    """However many workers there are, each can take a body of a request between nodes, and never more than the pod."""
    of_pod = pod(ports, body_bytes_max=largest)

    for worker in worker_settings(of_pod):
        assert min(2 * largest, of_pod.bodies_bytes_max) <= worker.bodies_bytes_max
        assert worker.bodies_bytes_max <= of_pod.bodies_bytes_max


@pytest.mark.parametrize(
    "url", ["http://users-r1-0:8080", "http://users-r1-0", "http://[fd00::1]:8080", "https://10.0.0.1"]
)
def test_worker_address_differs_in_the_port(url: str) -> None:
    """A worker is reached at the pod's host, by name or by address, and its own port."""
    (worker,) = worker_settings(replace(pod([8081]), advertised_url=url))

    assert worker.advertised_url == url.removesuffix(":8080") + ":8081"


@pytest.mark.parametrize(
    "ports", ["8081,", "8081;8082", "8081,8081", "8080", "0", "65536", "8081, 8082", "²", "x" * 99]
)
def test_wrong_worker_ports_are_named(ports: str) -> None:
    """The error names the variable when the ports are no list of different ports."""
    with pytest.raises(SettingsError, match="QT_WORKER_PORTS must be"):
        worker_settings(replace(small(), worker_ports=ports))


def test_too_many_workers_are_refused() -> None:
    """A pod has at most 64 workers."""
    with pytest.raises(SettingsError, match="QT_WORKER_PORTS must be at most 64"):
        worker_settings(replace(small(), worker_ports=",".join(map(str, range(9000, 9065)))))
