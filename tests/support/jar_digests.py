"""Write the digests of freshly downloaded jars: `make digests`, after a change of their versions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.beside_streams import STREAMS, STREAMS_DIGESTS
from queryable_app.platform import jars


def write_digests(sets: Iterable[jars.JarSet], file: Path) -> None:
    lines: list[str] = []
    for wanted in sets:
        with TemporaryDirectory() as scratch:
            lines += jars.digest_lines(wanted, jars.download(wanted, Path(scratch) / "ivy", Path(scratch)))
    file.write_text("".join(f"{line}\n" for line in lines))


def main() -> None:
    write_digests(jars.SETS, jars.DIGESTS_FILE)
    write_digests([STREAMS], STREAMS_DIGESTS)


if __name__ == "__main__":
    main()
