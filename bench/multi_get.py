"""Measure multi-gets of 100 keys on one core, closed loop over 4 connections."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Result, median
from bench.point_read import KEYS, closed_loop, server

WRK_SCRIPT = """
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
local n = 0
request = function()
  local keys = {}
  for i = 1, 100 do
    n = (n * 1103515245 + 12345) % 2147483648
    keys[i] = string.format('"%016x"', ((n % KEYS) * 2654435761) % 281474976710656)
  end
  return wrk.format(nil, "/v1/multi-get", nil, '{"keys":[' .. table.concat(keys, ",") .. ']}')
end
"""


def measure(directory: Path, quick: bool) -> Iterator[Result]:
    if shutil.which("wrk") is None:
        print("multi_get needs wrk (Debian: apt-get install wrk)")
        return
    store, script = directory / "store", directory / "wrk.lua"
    store.mkdir()
    script.write_text(WRK_SCRIPT.replace("KEYS", str(KEYS)))
    subprocess.run([sys.executable, "-m", "bench.server", "fill", str(store), str(KEYS)], check=True)
    with server("node", store) as port:
        rates = [100 * closed_loop(port, script, 2 if quick else 6, 4) for _ in range(1 if quick else 5)]
    figures = {"keys/s": median(rates), "min": min(rates), "max": max(rates)}
    yield Result("multi_get", "100 keys a request", {**figures}, ">= 150 K keys/s")
