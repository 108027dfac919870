"""Write `platform/jars.sha256` from freshly downloaded jars: `make digests`, after a change of versions in platform/jars.py."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from queryable_app.platform import jars


def main() -> None:
    lines: list[str] = []
    for wanted in jars.SETS:
        with TemporaryDirectory() as scratch:
            lines += jars.digest_lines(wanted, jars.download(wanted, Path(scratch) / "ivy", Path(scratch)))
    jars.DIGESTS_FILE.write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
