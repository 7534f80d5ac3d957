"""Files that lie in a table's folder and belong to the table once a commit of Delta names them.

Free of Spark: tasks write such files, and so do programs without a JVM.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from offsets_pipeline.delta.filesystems import open_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The application whose transactions make writers of one table notice each other: each takes the next number.
APPLICATION = "offsets"

_ROW_GROUP_ROWS = 50_000  # of the state: a group's rows lie in one or two, whoever asks for one group reads little
#: Measured on the log: three fifths of what snappy leaves, for a quarter more time to write (docs/adr/0007).
COMPRESSION = "zstd"


@dataclass(frozen=True)
class WrittenFile:
    """A file that lies in a table's folder; it belongs to the table once a commit names it.

    ``name`` is its path within that folder. ``lowest`` and ``highest`` bound columns without nulls, in the order of the
    table's statistics; ``partition`` is what its place among the table's partitions says.
    """

    name: str
    size: int
    rows: int
    lowest: Mapping[str, int | str]
    highest: Mapping[str, int | str]
    partition: Mapping[str, str] = field(default_factory=dict)

    def add_action(self, *, is_change: bool = True) -> dict[str, Any]:
        """The fields of the action of Delta's protocol that adds it, with its statistics; a change brings rows."""
        stats = {
            "numRecords": self.rows,
            "minValues": self.lowest,
            "maxValues": self.highest,
            "nullCount": dict.fromkeys(self.lowest, 0),
        }
        return {
            "path": self.name,
            "partitionValues": self.partition,
            "size": self.size,
            "modificationTime": int(time.time() * 1000),
            "dataChange": is_change,
            "stats": json.dumps(stats),
        }

    def as_text(self) -> str:
        """The file as text, as a task hands it to the driver."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> WrittenFile:
        """The file out of that text."""
        return cls(**json.loads(text))


def new_file_name() -> str:
    """A name that no two tasks or attempts give to their files."""
    return f"part-{uuid.uuid4()}.{COMPRESSION}.parquet"


def written_file(
    folder: str, rows: pa.Table, bounded: Sequence[str], partition: Mapping[str, str] | None = None
) -> WrittenFile:
    """Write rows to a new file in a table's folder; ``bounded`` are columns without nulls to keep statistics of."""
    system, path = open_path(folder)
    place = "".join(f"{column}={value}/" for column, value in (partition or {}).items())
    if place and isinstance(system, fs.LocalFileSystem):  # elsewhere folders come with their files
        system.create_dir(f"{path}/{place}", recursive=True)
    name = place + new_file_name()
    with system.open_output_stream(f"{path}/{name}") as sink:
        pq.write_table(rows, sink, row_group_size=_ROW_GROUP_ROWS, compression=COMPRESSION, store_schema=False)
        size = int(sink.tell())
    lowest, highest = ({each: choose(rows[each]).as_py() for each in bounded} for choose in (pc.min, pc.max))
    return WrittenFile(name, size, rows.num_rows, lowest, highest, partition or {})
