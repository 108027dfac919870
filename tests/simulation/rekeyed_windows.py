"""Check the windows of a rekeyed view against its source topic, whose partitions have clocks of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.simulation.checks import GuaranteeBroken
from tests.simulation.topic import Topic
from tests.simulation.views import View, window_rows
from tests.support.windows import Expected, expected_of_rows

Found = dict[tuple[bytes, int, int], tuple[bool, dict[str, Any]]]
"""Key, start and end → whether the window is final, and its value."""

_ORDERED = ("first", "last")  # follow the order of the internal topic


def grouped_windows_at(topic: Topic, view: View, positions: Mapping[int, int]) -> Expected:
    """Return the windows of all source records before the positions."""
    arrivals = [
        (partition, window_rows(record))
        for partition, written in enumerate(topic.written)
        for record in written
        if record.offset < positions[partition]
    ]
    return expected_of_rows(arrivals, view.rules, topic.partitions)


def without_order(found: Found) -> Found:
    """Leave out what depends on the order in which the jobs wrote the records of several source partitions."""
    return {
        window: (final, {name: part for name, part in value.items() if name not in _ORDERED})
        for window, (final, value) in found.items()
    }


def check_grouped_windows(
    topic: Topic, view: View, key: bytes, positions: Mapping[int, int], found: Found
) -> None:
    """Check the windows of one key that were read from a replica at these positions.

    The replica may have some rows of the records at the positions, and the read may have later rows. If there are any of this
    key, its windows are checked by their bounds.
    """
    ends = {partition: topic.end(partition) for partition in positions}
    beyond = {partition: min(ends[partition], offset + 1) for partition, offset in positions.items()}
    stated, last = grouped_windows_at(topic, view, positions), grouped_windows_at(topic, view, ends)
    marks = {stated.watermark, grouped_windows_at(topic, view, beyond).watermark}
    windows = {window for window in {*stated.windows, *last.windows} if window[0] == key}
    found = without_order(found)
    swept = replace(stated, watermark=last.watermark).items(view.rules)
    if sum(len(stated.windows.get(each, ())) for each in windows) == sum(
        len(last.windows.get(each, ())) for each in windows
    ):
        choices = [
            without_order(
                {
                    w: item
                    for w, item in replace(stated, watermark=mark).items(view.rules).items()
                    if w[0] == key
                }
            )
            for mark in marks
        ]
        if any(
            all(items.get(window) == item for window, item in found.items())
            and all(window in found or window not in swept for window in items)
            for items in choices
        ):
            return
        raise GuaranteeBroken(f"the windows of {key!r} are {found} as of {positions}, not {choices[0]}")
    for window, (final, value) in found.items():
        if final not in [
            replace(last, watermark=mark).items(view.rules).get(window, (final,))[0] for mark in marks
        ]:
            raise GuaranteeBroken(f"{window} is final: {final}, as of {positions}")
        if not view.rules.gap and not (
            len(stated.windows.get(window, ())) <= value["n"] <= len(last.windows.get(window, ()))
        ):
            raise GuaranteeBroken(f"{window} is {value} as of {positions}")
