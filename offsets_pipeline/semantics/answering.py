"""Which groups and offsets a store answers with: one rule for every reader of the state tables (R1, R14).

A group that exists is listed: type, state, protocol type. A misplaced one says no more than that, since a broker takes
every other question to the log partition of R1, where the group does not exist. A share group has no committed offsets:
what a simple group that it replaced left behind answers no fetch.

Each is a condition of SQL, Spark's and DataFusion's, on the columns of a row of `groups`.
"""

from __future__ import annotations

from offsets_pipeline.semantics.group_types import SHARE

#: Whether the group is listed.
IS_LISTED = "state <> 'Dead'"

#: Whether it answers questions about itself.
ANSWERS = f"{IS_LISTED} AND NOT misplaced"

#: Whether the offsets that lie in its log partition under its id are no answer; a dead group has no type.
HIDES_OFFSETS = f"(state = 'Dead' OR group_type = '{SHARE}')"
