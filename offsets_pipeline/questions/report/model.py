"""The data of the report's page. Times are milliseconds since 1970; None if the store does not have a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from offsets_pipeline.questions.query.describe import MemberAnswer


class Point(NamedTuple):
    """A value at a time; None: not known at that time, which interrupts a line."""

    at_ms: int
    value: float | None


@dataclass(frozen=True)
class TimeSeries:
    """Values of a chart by time: a line, or columns."""

    name: str
    points: list[Point]


@dataclass(frozen=True)
class GroupRow:
    """A group. ``lag`` sums the offsets behind of its partitions, ``lag_seconds`` is the largest of its partitions.

    Both are as of ``lag_as_of``. ``lag_method`` says how ``lag_seconds`` was found. ``lag_unknown`` counts partitions
    without a known lag, for the reason ``lag_reason``. ``status`` is OK, WARN, ERR or UNKNOWN.
    """

    group: str
    state: str
    type: str
    members: int
    offsets: int
    last_commit_ms: int | None
    lag: int | None = None
    lag_seconds: float | None = None
    lag_unknown: int = 0
    lag_reason: str | None = None
    status: str | None = None
    lag_as_of: str | None = None
    lag_method: str | None = None


@dataclass(frozen=True)
class Rewind:
    """A commit of a lower offset than the one before."""

    at_ms: int
    group: str
    topic: str
    partition: int
    from_offset: int
    to_offset: int
    by: str | None = None


@dataclass(frozen=True)
class Deletion:
    """A deletion of an offset, with its cause as `why` finds it. ``offset`` is None if its commit is lost."""

    at_ms: int | None
    group: str
    topic: str
    partition: int
    offset: int | None
    cause: str
    reason: str


@dataclass(frozen=True)
class StaleGroup:
    """A group that has offsets and has not committed for long."""

    group: str
    state: str
    offsets: int
    last_commit_ms: int
    idle_ms: int


@dataclass(frozen=True)
class ExpiringGroup:
    """Offsets of a group that expire by one rule; ``held`` if an open transaction keeps them."""

    group: str
    offsets: int
    first_ms: int
    last_ms: int
    rule: str
    reason: str
    held: bool


@dataclass(frozen=True)
class GroupPart:
    """What is known of one group; of rewinds and deletions the latest. ``lag`` and ``commits`` are lines of charts."""

    group: str
    members: list[MemberAnswer]
    lag: TimeSeries | None
    commits: TimeSeries | None
    rewinds: list[Rewind]
    deletions: list[Deletion]
    expiring: list[ExpiringGroup]


@dataclass(frozen=True)
class ReportSection:
    """Rows of a table: the first ones, of ``total``."""

    total: int = 0
    missing: str | None = None
    """Why there is nothing to show."""


@dataclass(frozen=True)
class ReportedGroups(ReportSection):
    """All groups, the worst first: by status, lag in seconds, lag, and time of the last commit."""

    rows: list[GroupRow] = field(default_factory=list)
    parts: list[GroupPart] = field(default_factory=list)
    """More of the first ones."""


@dataclass(frozen=True)
class GroupLines(ReportSection):
    """Lines of the groups that have a part: the worst first, or those that commit most first."""

    series: list[TimeSeries] = field(default_factory=list)


@dataclass(frozen=True)
class Rewinds(ReportSection):
    """The latest rewinds."""

    rows: list[Rewind] = field(default_factory=list)


@dataclass(frozen=True)
class StaleGroups(ReportSection):
    """Groups without a commit for ``after_ms``, the longest first."""

    after_ms: int = 0
    rows: list[StaleGroup] = field(default_factory=list)


@dataclass(frozen=True)
class Expiring(ReportSection):
    """Offsets that expire within ``within_ms``, the soonest first, and their number by time."""

    within_ms: int = 0
    rows: list[ExpiringGroup] = field(default_factory=list)
    by_time: TimeSeries = field(default_factory=lambda: TimeSeries("offsets that expire", []))


@dataclass(frozen=True)
class Report:
    """All that the page shows. The charts span ``from_ms`` to ``until_ms``.

    ``as_of_ms`` is the data time. ``made_ms`` is when the report was made, or the past time that was asked for.
    """

    store: str
    kind: str
    made_ms: int
    last_commit_ms: int | None
    from_ms: int
    until_ms: int
    as_of_ms: int
    sampled_ms: int | None = None
    """Positions of topics are known up to this time."""
    states: dict[str, int] = field(default_factory=dict)
    """Number of groups by state."""
    offsets: int = 0
    warnings: list[str] = field(default_factory=list)
    groups: ReportedGroups = field(default_factory=ReportedGroups)
    lag_over_time: GroupLines = field(default_factory=GroupLines)
    commit_rates: GroupLines = field(default_factory=GroupLines)
    """Committed offsets a minute."""
    rewinds: Rewinds = field(default_factory=Rewinds)
    stale: StaleGroups = field(default_factory=StaleGroups)
    expiring: Expiring = field(default_factory=Expiring)
