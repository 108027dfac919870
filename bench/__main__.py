"""Run the benchmarks, print their table, and write it as JSON and as Markdown: `python -m bench [NAME ...]`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

NAMES = (
    "beside_streams",
    "point_read",
    "auth",
    "token_flood",
    "forwarded_read",
    "workers",
    "multi_get",
    "request_body",
    "scan",
    "changes",
    "overload",
    "startup",
    "failover",
    "hydration",
    "formats",
    "counts",
    "index",
    "entries",
    "history",
    "fold",
    "peer_hydration",
    "freshness",
    "freshness_doors",
    "rekey",
    "windows",
    "boundaries",
    "assignment",
    "memory",
    "placement",
    "capacity",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one or more of {', '.join(NAMES)}; all by default"
    )
    parser.add_argument(
        "--quick", action="store_true", help="smaller and shorter: shows that it works, not how fast"
    )
    parser.add_argument(
        "--json", type=Path, default=Path("bench/results/latest.json"), help="where the figures go"
    )
    chosen = parser.parse_args()
    unknown = [n for n in chosen.names if n not in NAMES]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    results, tables = [], []
    for name in chosen.names or NAMES:
        module = importlib.import_module(f"bench.{name}")
        headline = (module.__doc__ or "").strip().splitlines()[0]
        print(f"\n{name}: {headline}", flush=True)
        tables += [f"## {name}", "", headline, "", "| case | figures | target | load |", "|---|---|---|---|"]
        with tempfile.TemporaryDirectory(prefix="qtbench-") as directory:
            for result in module.measure(Path(directory), chosen.quick):
                print(result.line(), flush=True)
                results.append(asdict(result))
                tables.append(result.row())
        tables.append("")
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(results, indent=1))
    chosen.json.with_suffix(".md").write_text("\n".join(tables))
    print(f"\nwritten to {chosen.json} and {chosen.json.with_suffix('.md')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
