"""Settings: typed, frozen, read from one TOML file.

`conf/offsets.toml` has every setting with its default and a description; a test compares its defaults with this module.
A missing setting has its default. A name may be written with dots, as Kafka writes it: `offsets.retention.minutes`. An
unknown setting, or a wrong type or value, raises ConfigError with the file, the setting, and the allowed values.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from dataclasses import InitVar, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from offsets_pipeline.clock import MS_OF_HOUR
from offsets_pipeline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

CONF_ENV = "OFFSETS_CONF"
CONF_PATH = Path("conf/offsets.toml")

_INT32_MAX = 2**31 - 1
HOURS_MAX = 24 * 366 * 1000
_ZOOKEEPER_SERVER = r"(\[[0-9A-Fa-f:.]+\]|[^\s,/:\[\]]+)(:\d{1,5})?"
_ZOOKEEPER_CONNECT = rf"({_ZOOKEEPER_SERVER}(,{_ZOOKEEPER_SERVER})*(/[^\s/]+)*/?)?"
_MS_MAX = HOURS_MAX * MS_OF_HOUR  # a thousand years: timestamps stay in range


class _Rule(Protocol):
    """The allowed values of a setting."""

    allowed: str
    """Text for error messages: "a whole number from 1 to 10"."""

    def accepts(self, value: object) -> bool:
        """Whether `value` has the right type and lies in the allowed range."""
        ...


class _WholeNumber:
    def __init__(self, lowest: int, highest: int) -> None:
        self._range = range(lowest, highest + 1)
        self.allowed = f"a whole number from {lowest} to {highest}"

    def accepts(self, value: object) -> bool:
        # Python's True is an int; TOML's true is not a number.
        return isinstance(value, int) and not isinstance(value, bool) and value in self._range


class _TrueOrFalse:
    allowed = "true or false"

    def accepts(self, value: object) -> bool:
        return isinstance(value, bool)


class _OneOf:
    def __init__(self, *choices: str) -> None:
        self._choices = choices
        self.allowed = " or ".join(f'"{choice}"' for choice in choices)

    def accepts(self, value: object) -> bool:
        return isinstance(value, str) and value in self._choices


class _Text:
    def __init__(self, pattern: str, allowed: str) -> None:
        self._pattern = re.compile(pattern)
        self.allowed = allowed

    def accepts(self, value: object) -> bool:
        return isinstance(value, str) and self._pattern.fullmatch(value) is not None


class _AnyText:
    allowed = "text"

    def accepts(self, value: object) -> bool:
        return isinstance(value, str)


class _Pattern:
    allowed = "a regular expression"

    def accepts(self, value: object) -> bool:
        try:
            return isinstance(value, str) and re.compile(value) is not None
        except re.error:
            return False


_Value = TypeVar("_Value")


def _setting(default: _Value, rule: _Rule) -> _Value:
    """A dataclass field with its default and its rule."""
    return field(default=default, metadata={"rule": rule})


class _Section:
    """Base of the sections. Raises ConfigError for a value that breaks its setting's rule."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for each in fields(cast("Any", self)):
            rule: _Rule = each.metadata["rule"]
            value = getattr(self, each.name)
            if not rule.accepts(value):
                raise ConfigError(f"{each.name}: {_as_toml(value)} is not allowed; it takes {rule.allowed}")


@dataclass(frozen=True, slots=True)
class LogSettings(_Section):
    """[log]: the offsets log, its creation and its cleaning.

    Raises:
        ConfigError: a value is of the wrong type or not allowed.
    """

    offsets_partitions: int = _setting(50, _WholeNumber(1, _INT32_MAX))
    """Log partitions of a new store, by default: Kafka's offsets.topic.num.partitions (R1)."""

    coordinator_semantics: Literal["auto", "modern", "classic"] = _setting("auto", _OneOf("auto", "modern", "classic"))
    """Coordinator that a new mirrored store reproduces: modern of Kafka 4.x, classic of brokers up to 3.9.

    With auto `follow` asks the broker, and segment files are modern.
    """

    corrupt_records: Literal["quarantine", "fail"] = _setting("quarantine", _OneOf("quarantine", "fail"))
    """Treatment of a record that does not decode: add it to the quarantine table, or fail the fold (R6)."""

    min_compaction_lag_ms: int = _setting(0, _WholeNumber(0, _MS_MAX))
    """Milliseconds for which a cleaning of the log keeps every record: Kafka's min.compaction.lag.ms (R23)."""

    delete_retention_ms: int = _setting(86_400_000, _WholeNumber(0, _MS_MAX))
    """Milliseconds for which a cleaning keeps the last tombstone of a key: Kafka's delete.retention.ms (R23)."""

    history_hours: int = _setting(0, _WholeNumber(0, HOURS_MAX))
    """Hours of history that upkeep keeps in the log; it cleans older records. 0 keeps all."""

    offsets_topic_num_partitions: InitVar[int | None] = None
    """Kafka's name of `offsets_partitions`; it has precedence."""

    def __post_init__(self, offsets_topic_num_partitions: int | None) -> None:
        """Take `offsets_partitions` by either name, and check each value."""
        if offsets_topic_num_partitions is not None:
            object.__setattr__(self, "offsets_partitions", offsets_topic_num_partitions)
        _Section.__post_init__(self)


@dataclass(frozen=True, slots=True)
class FoldSettings(_Section):
    """[fold]: how the log is folded into the state tables.

    Raises:
        ConfigError: a value is of the wrong type or not allowed.
    """

    trigger_interval_ms: int = _setting(1_000, _WholeNumber(0, _INT32_MAX))
    """Milliseconds between the starts of two batches of a continuous fold; 0 starts a batch when the last one ends."""

    driver_rows: int = _setting(50_000, _WholeNumber(0, _INT32_MAX))
    """Largest batch, in rows, that is folded in the driver instead of Spark tasks; 0 folds all batches in tasks."""

    compact_rows: int = _setting(100_000, _WholeNumber(1, _INT32_MAX))
    """Number of delta rows at which a stream compacts a state table; a compaction rewrites the table."""

    compact_percent: int = _setting(5, _WholeNumber(0, 100))
    """Delta rows as a percentage of the base rows: the larger of this and `compact_rows` counts."""

    compact_files: int = _setting(30, _WholeNumber(1, _INT32_MAX))
    """Number of delta files at which a stream compacts a state table, independent of `compact_rows`."""

    upkeep_interval_ms: int = _setting(600_000, _WholeNumber(0, _INT32_MAX))
    """Milliseconds between two runs of upkeep beside a stream that folds; 0 turns it off."""

    clean_in_stream: bool = _setting(default=True, rule=_TrueOrFalse())
    """Whether upkeep beside a stream cleans the log, once per `history_hours` of [log], if that is set."""

    expire_in_stream: bool = _setting(default=True, rule=_TrueOrFalse())
    """Whether the stream over an owned store expires offsets, every `offsets_retention_check_interval_ms` (R22)."""

    max_retries: int = _setting(10, _WholeNumber(0, 100))
    """Retries of a write after a conflict with another writer; 0 is none."""

    retry_backoff_ms: int = _setting(100, _WholeNumber(1, _INT32_MAX))
    """Milliseconds before the first retry; the wait doubles with each retry."""

    max_backoff_ms: int = _setting(5_000, _WholeNumber(1, _INT32_MAX))
    """The longest wait before a retry, in milliseconds."""

    def __post_init__(self) -> None:
        """Check each value, and that `max_backoff_ms` is at least `retry_backoff_ms`."""
        _Section.__post_init__(self)
        if self.max_backoff_ms < self.retry_backoff_ms:
            raise ConfigError(
                f"max_backoff_ms: {self.max_backoff_ms} is not allowed; "
                f"it takes at least retry_backoff_ms, which is {self.retry_backoff_ms}"
            )


@dataclass(frozen=True, slots=True)
class CoordinatorSettings(_Section):
    """[coordinator]: an owned log's coordinator. Each setting has the name of the broker's setting, with _ for dots.

    Raises:
        ConfigError: a value is of the wrong type or not allowed.
    """

    offsets_retention_minutes: int = _setting(10_080, _WholeNumber(1, _INT32_MAX))
    """Minutes after which an offset expires, unless its commit names its own retention time (R19)."""

    offsets_retention_check_interval_ms: int = _setting(600_000, _WholeNumber(1, _INT32_MAX))
    """Milliseconds between two searches for expired offsets, in each process that has loaded log partitions."""

    offset_metadata_max_bytes: int = _setting(4_096, _WholeNumber(0, 32_767))
    """Largest metadata text of an offset commit, in bytes of UTF-8."""

    offsets_commit_timeout_ms: int = _setting(5_000, _WholeNumber(1, _INT32_MAX))
    """Milliseconds that a request waits for its append."""

    offsets_commit_required_acks: int = _setting(-1, _WholeNumber(-1, 1))
    """When a commit is acknowledged (R27): 0 at once, 1 when the log holds it, -1 when storage holds it durably."""

    offsets_load_buffer_size: int = _setting(5_242_880, _WholeNumber(1, _INT32_MAX))
    """Bytes of the log to read between two compactions in memory, while a log partition loads."""

    offset_commit_value_version: int = _setting(4, _WholeNumber(0, 4))
    """Version of the values of offset commits; a commit with its own retention time always has version 1 (R7)."""

    group_metadata_value_version: int = _setting(3, _WholeNumber(0, 4))
    """Version of the values of group metadata (R7)."""

    transaction_max_timeout_ms: int = _setting(900_000, _WholeNumber(1, _INT32_MAX))
    """Largest timeout of a transaction; after this time a transaction that its process left open is aborted."""

    offsets_storage: Literal["kafka", "zookeeper"] = _setting("kafka", _OneOf("kafka", "zookeeper"))
    """The target of commits: the log, or ZooKeeper; old consumers' `offsets.storage`."""

    dual_commit_enabled: bool = _setting(default=False, rule=_TrueOrFalse())
    """Whether commits go to the log and to ZooKeeper, whatever `offsets_storage` is."""

    @property
    def commits_to_log(self) -> bool:
        """Whether all commits go to the log."""
        return self.offsets_storage == "kafka" or self.dual_commit_enabled

    @property
    def uses_zookeeper(self) -> bool:
        """Whether commits go to ZooKeeper."""
        return self.offsets_storage == "zookeeper" or self.dual_commit_enabled


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings(_Section):
    """[zookeeper]: the connection to ZooKeeper. Names are those of a broker's settings zookeeper.*, with _ for dots.

    Raises:
        ConfigError: a value is of the wrong type or not allowed.
    """

    connect: str = _setting("", _Text(_ZOOKEEPER_CONNECT, "HOST:PORT[,HOST:PORT...][/chroot]"))
    """Addresses of the servers, and the node below which Kafka keeps its nodes."""

    session_timeout_ms: int = _setting(6_000, _WholeNumber(1, _INT32_MAX))
    """Milliseconds after which ZooKeeper ends the session of a silent client."""

    connection_timeout_ms: int = _setting(6_000, _WholeNumber(1, _INT32_MAX))
    """Milliseconds to wait for a connection, and for a reconnection."""

    digest: str = field(default="", repr=False, metadata={"rule": _AnyText()})  # may be a secret
    """User and password of the authentication scheme `digest`, as USER:PASSWORD, ``env:NAME`` or ``file:PATH``."""

    ssl_client_enable: bool = _setting(default=False, rule=_TrueOrFalse())
    """Whether the connection uses TLS."""

    ssl_truststore_location: str = _setting("", _AnyText())
    """PEM file with the certificates to trust; by default those of the system."""

    ssl_keystore_location: str = _setting("", _AnyText())
    """PEM file with the client's private key and its certificates."""

    ssl_keystore_password: str = field(default="", repr=False, metadata={"rule": _AnyText()})
    """Password of the private key: the text, ``env:NAME`` or ``file:PATH``."""


@dataclass(frozen=True, slots=True)
class TopicSettings(_Section):
    """[topic]: how `follow` reads a broker's offsets topic.

    Raises:
        ConfigError: a value is of the wrong type or not allowed.
    """

    name: str = _setting("__consumer_offsets", _Text(r"[a-zA-Z0-9._-]{1,249}", "the name of a topic"))
    """The topic to follow."""

    trigger_interval_ms: int = _setting(500, _WholeNumber(0, _INT32_MAX))
    """Milliseconds between the starts of two batches; 0 starts a batch when the last one ends."""

    max_records_per_batch: int = _setting(1_000_000, _WholeNumber(1, _INT32_MAX))
    """Largest number of record offsets in a batch: it divides the first read of a long log into several batches."""

    watch_interval_ms: int = _setting(5_000, _WholeNumber(100, _INT32_MAX))
    """Milliseconds between two requests for the topic's identity and its offsets."""

    note_interval_ms: int = _setting(30_000, _WholeNumber(100, _INT32_MAX))
    """Milliseconds between two writes of the reading's progress to the store."""

    open_transaction_warning_ms: int = _setting(900_000, _WholeNumber(1, _MS_MAX))
    """Age in milliseconds at which an open transaction causes a warning: the broker's transaction.max.timeout.ms."""


@dataclass(frozen=True, slots=True)
class QuestionSettings(_Section):
    """[questions]: how commands that read a store answer.

    Raises:
        ConfigError: a value is of the wrong type or not allowed.
    """

    max_unfolded_records: int = _setting(200_000, _WholeNumber(0, _INT32_MAX))
    """Largest number of records that a question folds itself, because the stream has not folded them yet; 0: none."""


@dataclass(frozen=True, slots=True)
class LagSettings(_Section):
    """[lag]: positions of topics, and the lag computed from them.

    Raises:
        ConfigError: a value is of the wrong type or not allowed.
    """

    sample_interval_ms: int = _setting(30_000, _WholeNumber(0, _INT32_MAX))
    """Milliseconds between two samples of topics' positions that `follow` takes; 0 takes none."""

    sample_retention_hours: int = _setting(840, _WholeNumber(0, HOURS_MAX))
    """Hours for which upkeep keeps samples of positions; 0 keeps all. Default: 35 days."""

    sample_topics: str = _setting(".*", _Pattern())
    """Regular expression of the topics to sample; it must match the whole name."""

    window_commits: int = _setting(10, _WholeNumber(1, 1_000))
    """Number of commits from which the status of a partition is evaluated."""

    metrics_groups: str = _setting(".*", _Pattern())
    """Regular expression of the groups with metrics of their own; it must match the whole group id."""

    metrics_max_series: int = _setting(10_000, _WholeNumber(0, _INT32_MAX))
    """Largest number of series of one metric of groups; metrics of further groups are left out, with a warning."""

    metrics_partitions: bool = _setting(default=False, rule=_TrueOrFalse())
    """Whether metrics of groups are also reported by partition."""


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """[kafka]: options of Kafka's clients, except the address; names and values are Kafka's own.

    A value ``env:NAME`` refers to an environment variable, and ``file:PATH`` to the content of a file.

    Raises:
        ConfigError: a value is not a text, a whole number, true or false.
    """

    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # a value may be a secret

    @classmethod
    def of_document(cls, values: Mapping[str, object]) -> KafkaSettings:
        """Read the section from a TOML document, where `a.b = 1` makes a table within a table."""
        return cls(dict(_flat(values)))


def _leaves(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of nested tables by their dotted names."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _flat(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name, value in _leaves(values):
        if isinstance(value, bool):
            yield name, str(value).lower()
        elif isinstance(value, (str, int)):
            yield name, str(value)
        else:
            raise ConfigError(f"{name}: it takes text, a whole number, true or false")


@dataclass(frozen=True, slots=True)
class SparkSettings(_Section):
    """[spark]: the session that this program starts if none is running. Options of spark-submit override all of these.

    Raises:
        ConfigError: a value is of the wrong type or not allowed.
    """

    master: str = _setting("local[*]", _Text(r"\S+", 'a Spark master, as "local[2]" or "spark://host:7077"'))
    """Spark's master URL."""

    shuffle_partitions: int = _setting(2, _WholeNumber(1, 100_000))
    """Tasks of a shuffle: about two per core."""

    driver_memory: str = _setting("2g", _Text(r"[1-9][0-9]*[kmgt]", 'a size as "512m" or "4g"'))
    """Heap of the JVM that this program starts."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting."""

    log: LogSettings = field(default_factory=LogSettings)
    fold: FoldSettings = field(default_factory=FoldSettings)
    coordinator: CoordinatorSettings = field(default_factory=CoordinatorSettings)
    zookeeper: ZooKeeperSettings = field(default_factory=ZooKeeperSettings)
    topic: TopicSettings = field(default_factory=TopicSettings)
    questions: QuestionSettings = field(default_factory=QuestionSettings)
    lag: LagSettings = field(default_factory=LagSettings)
    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    spark: SparkSettings = field(default_factory=SparkSettings)


_SECTIONS: Mapping[
    str,
    type[
        LogSettings
        | FoldSettings
        | CoordinatorSettings
        | ZooKeeperSettings
        | TopicSettings
        | QuestionSettings
        | LagSettings
        | SparkSettings
    ],
] = {
    "log": LogSettings,
    "fold": FoldSettings,
    "coordinator": CoordinatorSettings,
    "zookeeper": ZooKeeperSettings,
    "topic": TopicSettings,
    "questions": QuestionSettings,
    "lag": LagSettings,
    "spark": SparkSettings,
}
#: The two names of the number of log partitions: this project's and Kafka's.
_PARTITIONS = frozenset({"offsets_partitions", "offsets_topic_num_partitions"})
_KAFKA = "kafka"  # only Kafka knows the names of its options


def load_settings(path: Path | None = None) -> Settings:
    """Read the settings.

    The file is `path` if given, else the file that the environment variable OFFSETS_CONF names, else
    ./conf/offsets.toml if it exists. Without a file every setting has its default.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or has a setting with a wrong name, type or value.
    """
    chosen = _chosen_file(path)
    if chosen is None:
        return Settings()
    try:
        document = tomllib.loads(chosen.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {chosen}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the settings file {chosen}: it is not TOML: {error}") from error
    try:
        return _from_document(document)
    except ConfigError as error:
        raise ConfigError(f"{chosen}: {error}") from error


def _chosen_file(path: Path | None) -> Path | None:
    if path is not None:
        return path
    named = os.environ.get(CONF_ENV)
    if named:
        return Path(named)
    return CONF_PATH if CONF_PATH.is_file() else None


def _from_document(document: Mapping[str, object]) -> Settings:
    sections: dict[str, object] = {}
    for section, values in document.items():
        if section not in _SECTIONS and section != _KAFKA:
            raise ConfigError(f"[{section}] is not a section; {_known(section, [*_SECTIONS, _KAFKA])}")
        if not isinstance(values, dict):
            raise ConfigError(f"{section}: {_as_toml(values)} is not allowed; [{section}] is a section")
        if section == _KAFKA:
            try:
                sections[section] = KafkaSettings.of_document(values)
            except ConfigError as error:
                raise ConfigError(f"[{section}] {error}") from error
            continue
        names = [each.name for each in fields(_SECTIONS[section])]
        named = {name.replace(".", "_"): value for name, value in _leaves(values)}
        for name in named:
            if name not in names and (section != "log" or name not in _PARTITIONS):
                raise ConfigError(f"[{section}] {name} is not a setting; {_known(name, names)}")
        if named.keys() >= _PARTITIONS and len({named[name] for name in _PARTITIONS}) > 1:
            raise ConfigError(f"[{section}] {' and '.join(sorted(_PARTITIONS))} differ; give one of them")
        try:
            sections[section] = _SECTIONS[section](**cast("Any", named))
        except ConfigError as error:
            raise ConfigError(f"[{section}] {error}") from error
    return Settings(**cast("Any", sections))


def _known(wrong: str, names: Iterable[str]) -> str:
    names = list(names)
    near = difflib.get_close_matches(wrong, names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{hint}known are {', '.join(names)}"


def _as_toml(value: object) -> str:
    """The value in TOML, close enough to find it in the file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value)
