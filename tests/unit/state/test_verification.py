"""What a verification says of rows that differ."""

from __future__ import annotations

import pyarrow as pa

from offsets_pipeline.fold.state.verify import Verification


def rows(*offsets: tuple[int, int]) -> pa.Table:
    return pa.table({"partition": [at for at, _ in offsets], "committed_offset": [offset for _, offset in offsets]})


def test_all_differences_are_counted_and_the_first_five_are_shown() -> None:
    found = Verification()
    same, other = [(9, 1)], [(at, 8) for at in (5, 4, 3, 2)]
    found.compare(
        "offsets",
        ("partition",),
        rows(*same, (0, 7), (1, 7), *((at, 7) for at, _ in other)),
        rows(*same, (1, 7), (1, 7), *other, (6, 8)),
    )
    assert dict(found.differences) == {"offsets": 7}  # 0 to 6
    places = [f"offsets: partition {at}: the log gives" for at in range(5)]
    assert [each.partition(" {")[0] for each in found.examples] == places
    assert found.examples[0].endswith("the state has nothing")
    assert found.examples[1].endswith(" 2 times")
