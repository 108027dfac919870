"""Find the Secret of `spec.auth` on a machine that has none: a directory with a file for each of its keys."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from queryable_app.config.topic_spec import TopicSpec
from queryable_app.contract import ENV_PREFIX, SettingsError

_VARIABLE: Final = f"{ENV_PREFIX}AUTH_SECRET_DIR"  # the nodes of a run inherit it


def require_auth_secret(spec: TopicSpec, environ: Mapping[str, str] = os.environ) -> None:
    """Raise SettingsError, before anything starts, if the view needs a Secret that is not there."""
    if spec.auth is None or not spec.auth.secret_name:
        return
    key = spec.auth.secret_key
    directory = environ.get(_VARIABLE, "")
    if not directory:
        raise SettingsError(
            f"spec.auth.jwt.secretRef: there are no Secrets on this machine; write the key into a file {key}, "
            f"and set {_VARIABLE} to its directory"
        )
    if not Path(directory, key).is_file():
        raise SettingsError(f"spec.auth.jwt.secretRef: there is no file {key} in {directory} ({_VARIABLE})")
