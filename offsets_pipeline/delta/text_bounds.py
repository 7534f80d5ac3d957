"""Finds upper bounds of texts that deltalake reads wrong (docs/adr/0033).

JSON may write a character above U+FFFF as two escapes. deltalake reads the two of U+20BB7 as U+10BB7, and so with every
even plane of Unicode. The upper bound of a file is then too low, and a query leaves the file out. Older versions of
this program wrote such escapes into statistics; other programs may.
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from offsets_pipeline.delta.data_file import bounded_columns
from offsets_pipeline.delta.filesystems import open_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsets_pipeline.delta.reader import StoredFile
    from offsets_pipeline.delta.schemas import Table

_LOG = logging.getLogger(__name__)

#: Characters of the odd planes: read right, or the result of reading one of the next plane wrong.
_READ_RIGHT_OR_WRONG = re.compile(
    f"[{''.join(f'{chr(each << 16)}-{chr((each << 16) + 0xFFFF)}' for each in range(1, 16, 2))}]"
)


def bounded_texts(table: Table) -> Sequence[str]:
    """Return the columns of texts that files of a table keep statistics of."""
    bounded = bounded_columns(table)
    return [each.name for each in table.columns if pa.types.is_string(each.type) and each.name in bounded]


def with_right_bounds(path: str, file: StoredFile, texts: Sequence[str]) -> StoredFile:
    """Return a file of deltalake's list, without the bounds of these columns if one of them is wrong.

    ``path`` is that of the file for `open_path`. Opens the file only if a bound has a character that may be wrong.
    Raises OSError or ArrowException.
    """
    bounds = ((each, str(file.highest.get(each, ""))) for each in texts)
    if not any(_READ_RIGHT_OR_WRONG.search(highest) and _highest(path, each) > highest for each, highest in bounds):
        return file
    _warn(path.removesuffix(f"/{unquote(file.name)}"))
    lowest, highest = (
        {name: bound for name, bound in each.items() if name not in texts} for each in (file.lowest, file.highest)
    )
    return replace(file, lowest=lowest, highest=highest, is_misread=True)


@lru_cache(maxsize=10_000)
def _highest(path: str, column: str) -> str:
    """The highest text of a column: from the footer, which has it unless it is long, or from the column."""
    system, name = open_path(path)
    with system.open_input_file(name) as source, pq.ParquetFile(source) as file:
        place = file.schema.names.index(column)
        statistics = [file.metadata.row_group(each).column(place).statistics for each in range(file.num_row_groups)]
        if all(each is not None and each.has_min_max for each in statistics):
            return max(str(each.max) for each in statistics)
        return str(pc.max(file.read([column], use_threads=False)[column]).as_py())


@cache
def _warn(folder: str) -> None:
    """Warn once about the table in a folder."""
    _LOG.warning(
        "%s has statistics, written by an older version, that earlier folds may have read wrong: if groups with "
        "characters above U+FFFF show a wrong state, mend it with `offsets reload`; `offsets verify` compares all, and "
        "`offsets maintain` mends the statistics",
        folder,
    )
