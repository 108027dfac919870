"""Read the files that are mounted into a node: the resource's spec, and the secret settings of Kafka's clients.

Strategy: a node reads both once, at its start; a change restarts the node. A message names a file and never shows its content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, get_args

from queryable_app.config.rekey import GroupKeyFormat, spec_of_nodes
from queryable_app.config.topic_spec import TopicSpec, parse_spec_json
from queryable_app.config.value_schema import split_settings
from queryable_app.contract import NodeSettings, SettingsError

_SPEC_BYTES_MAX: Final = 2 << 20  # a resource is at most 1.5 MiB
_SECRET_BYTES_MAX: Final = 1 << 20  # of all files together, as in a Secret
_SETTINGS_MAX: Final = 200
_SETTING_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")


def read_spec(settings: NodeSettings) -> TopicSpec:
    """Return the spec, with the settings of `kafka_secret_dir` over its own. Raise SettingsError, SpecError or OSError."""
    path = Path(settings.spec_path)
    try:
        spec = parse_spec_json(_text(path, _SPEC_BYTES_MAX))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(f"{path} (QT_SPEC_PATH) is not a resource's spec: {error!r}") from None
    if not settings.kafka_secret_dir:
        return spec
    given = {**spec.kafka_config, **spec.registry_config, **kafka_secret(Path(settings.kafka_secret_dir))}
    kafka_config, registry_config = split_settings(given)
    return replace(spec, kafka_config=kafka_config, registry_config=registry_config)


def read_token(settings: NodeSettings) -> str:
    """Return the token of the view's nodes, or an empty text if they have none. Raise OSError."""
    path = settings.internal_token_path
    return Path(path).read_text().strip() if path else ""


def read_node_spec(settings: NodeSettings) -> TopicSpec:
    """Return the spec that a node follows: that of a rekeyed view is a view of the internal topic. Raise as `read_spec`."""
    spec = read_spec(settings)
    if not spec.is_rekeyed:
        return spec
    key_format: Any = settings.group_key_format
    if key_format not in get_args(GroupKeyFormat):
        raise SettingsError(
            f"QT_GROUP_KEY_FORMAT is {key_format!r}; a view with spec.view.aggregate.groupBy or spec.view.keyBy needs "
            f"{', '.join(get_args(GroupKeyFormat))}; `qtopic run` and the operator set it"
        )
    return spec_of_nodes(spec, settings.application_id, key_format)


def kafka_secret(directory: Path) -> Mapping[str, str]:
    """Return a setting for each file. Kubernetes keeps the files in directories that begin with `..`, and links to them."""
    config: dict[str, str] = {}
    left = _SECRET_BYTES_MAX
    for file in sorted(directory.iterdir()):
        if file.name.startswith("..") or not file.is_file():
            continue
        if _SETTING_NAME.fullmatch(file.name) is None:
            raise SettingsError(
                f"{file} (QT_KAFKA_SECRET_DIR) does not have the name of a Kafka client setting"
            )
        try:
            text = _text(file, left)
        except UnicodeDecodeError:
            raise SettingsError(f"{file} (QT_KAFKA_SECRET_DIR) is not text in UTF-8") from None
        left -= len(text)
        config[file.name] = text.removesuffix("\n").removesuffix("\r")
        if len(config) > _SETTINGS_MAX:
            raise SettingsError(f"{directory} (QT_KAFKA_SECRET_DIR) has more than {_SETTINGS_MAX} files")
    return config


def _text(file: Path, bytes_max: int) -> str:
    with file.open("rb") as opened:
        content = opened.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise SettingsError(f"{file} is too large: all such files together may have {bytes_max} bytes")
    return content.decode()
