"""The CSV of a plan, to the byte as the library writes it with which kafka-consumer-groups does."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from offsets_pipeline.repair.offset_reset.plan import PlannedOffset, plan_csv, read_plan
from offsets_pipeline.semantics.partition_state import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kafka.brokers import KafkaJvm

# what CSV has a meaning for, what comes before and after it in the code, and what takes two units of UTF-16
CHARACTERS = "\t !\"#$%&'()*+,-./09:;<AZ\\_az{}~\x7fß☃😀\r\n"


def test_plans_are_written_as_kafka_writes_them_and_read_as_written(kafka: KafkaJvm, tmp_path: Path) -> None:
    chosen = random.Random(5)
    names = set(CHARACTERS) | {"a" * length for length in (1, 23, 24, 25)} | {"😀" * 12, "😀" * 13}
    names |= {"".join(chosen.choices(CHARACTERS, k=chosen.randint(1, 30))) for _ in range(500)}
    planned = [
        PlannedOffset(name, TopicPartition(name[::-1], chosen.randrange(2**31)), chosen.randrange(2**63), None)
        for name in sorted(names)
    ]
    rows: list[dict[str, str | int]] = [
        {
            "group": each.group_id,
            "topic": each.where.topic,
            "partition": each.where.partition,
            "offset": each.new_offset,
        }
        for each in planned
    ]
    columns = ["group", "topic", "partition", "offset"]
    assert plan_csv(planned, with_groups=True) == kafka.csv(columns, rows)
    path = tmp_path / "plan.csv"
    path.write_bytes(plan_csv(planned, with_groups=True).encode())
    assert read_plan(path, []) == {each.group_id: {each.where: each.new_offset} for each in planned}
    without = [{name: value for name, value in row.items() if name != "group"} for row in rows]
    assert plan_csv(planned, with_groups=False) == kafka.csv(columns[1:], without)
