"""The sections of the settings: each setting with its default, its allowed values and its meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

from offsets_pipeline.common.clock import MS_OF_HOUR
from offsets_pipeline.common.config.allowed_values import (
    ANY_TEXT,
    PATTERN,
    TRUE_OR_FALSE,
    Section,
    leaves,
    matching,
    one_of,
    setting,
    whole_number,
)
from offsets_pipeline.common.input_text import TOPIC_NAME
from offsets_pipeline.errors import ConfigError

_INT32_MAX = 2**31 - 1
#: The default of `driver_memory`.
AUTO_MEMORY = "auto"
HOURS_MAX = 24 * 366 * 1000
_ZOOKEEPER_SERVER = r"(\[[0-9A-Fa-f:.]+\]|[^\s,/:\[\]]+)(:\d{1,5})?"
_ZOOKEEPER_CONNECT = rf"({_ZOOKEEPER_SERVER}(,{_ZOOKEEPER_SERVER})*(/[^\s/]+)*/?)?"
_MS_MAX = HOURS_MAX * MS_OF_HOUR  # a thousand years: timestamps stay in range


@dataclass(frozen=True, slots=True)
class LogSettings(Section):
    """[log]: the offsets log, its creation and its cleaning."""

    offsets_partitions: int = setting(50, whole_number(1, _INT32_MAX))
    """Log partitions of a new store, by default: Kafka's offsets.topic.num.partitions (R1)."""

    coordinator_semantics: Literal["auto", "modern", "classic"] = setting("auto", one_of("auto", "modern", "classic"))
    """Coordinator that a new mirrored store reproduces: modern of Kafka 4.x, classic of brokers up to 3.9.

    With auto `follow` asks the broker, and segment files are modern.
    """

    corrupt_records: Literal["quarantine", "fail"] = setting("quarantine", one_of("quarantine", "fail"))
    """Treatment of a record that does not decode: add it to the quarantine table, or fail the fold (R6)."""

    min_compaction_lag_ms: int = setting(0, whole_number(0, _MS_MAX))
    """Milliseconds for which a cleaning of the log keeps every record: Kafka's min.compaction.lag.ms (R23)."""

    delete_retention_ms: int = setting(86_400_000, whole_number(0, _MS_MAX))
    """Milliseconds for which a cleaning keeps the last tombstone of a key: Kafka's delete.retention.ms (R23)."""

    offsets_topic_compression_codec: str = setting("auto", one_of("auto", "none", "gzip", "snappy", "lz4", "zstd"))
    """Codec of the log's files, and of exported batches: Kafka's offsets.topic.compression.codec, by name.

    With auto each writer has its own: see `codec`.
    """

    history_hours: int = setting(0, whole_number(0, HOURS_MAX))
    """Hours of history that upkeep keeps in the log; it cleans older records. 0 keeps all."""

    lease_duration_ms: int = setting(60_000, whole_number(1_000, _INT32_MAX))
    """Milliseconds without a renewal after which another process takes over the work on a store."""

    other_names: ClassVar[Mapping[str, str]] = {"offsets_topic_num_partitions": "offsets_partitions"}

    def codec(self, usual: str) -> str:
        """Return the codec of `offsets_topic_compression_codec`, or with auto the writer's ``usual`` one."""
        return usual if self.offsets_topic_compression_codec == "auto" else self.offsets_topic_compression_codec


@dataclass(frozen=True, slots=True)
class FoldSettings(Section):
    """[fold]: how the log is folded into the state tables."""

    trigger_interval_ms: int = setting(1_000, whole_number(0, _INT32_MAX))
    """Milliseconds between the starts of two batches of a continuous fold; 0 starts a batch when the last one ends."""

    driver_rows: int = setting(50_000, whole_number(0, _INT32_MAX))
    """Largest batch, in rows, that is folded in the driver instead of Spark tasks; 0 folds all batches in tasks."""

    publish_within_ms: int = setting(15_000, whole_number(1, _INT32_MAX))
    """Milliseconds from a fold until the published tables have it, beside a stream, with up to a million offsets."""

    publish_large_within_ms: int = setting(60_000, whole_number(1, _INT32_MAX))
    """The same with more offsets, as long as publishing takes no more than a fifth of a core."""

    compact_files: int = setting(30, whole_number(1, _INT32_MAX))
    """Number of small files at which a stream compacts facts that are not published, such as `group_records`."""

    upkeep_interval_ms: int = setting(120_000, whole_number(0, _INT32_MAX))
    """Milliseconds between two runs of upkeep beside a stream that folds; 0 turns it off."""

    clean_in_stream: bool = setting(default=True, allowed=TRUE_OR_FALSE)
    """Whether upkeep beside a stream cleans the log, once per `history_hours` of [log], if that is set."""

    expire_in_stream: bool = setting(default=True, allowed=TRUE_OR_FALSE)
    """Whether the stream over an owned store expires offsets, every `offsets_retention_check_interval_ms` (R22)."""


@dataclass(frozen=True, slots=True)
class CoordinatorSettings(Section):
    """[coordinator]: an owned log's coordinator. Each setting has the name of the broker's setting, with _ for dots."""

    offsets_retention_minutes: int = setting(10_080, whole_number(1, _INT32_MAX))
    """Minutes after which an offset expires, unless its commit names its own retention time (R19)."""

    offsets_retention_check_interval_ms: int = setting(600_000, whole_number(1, _INT32_MAX))
    """Milliseconds between two searches for expired offsets, in each process that has loaded log partitions."""

    offset_metadata_max_bytes: int = setting(4_096, whole_number(0, 32_767))
    """Largest metadata text of an offset commit, in bytes of UTF-8."""

    offsets_commit_timeout_ms: int = setting(5_000, whole_number(1, _INT32_MAX))
    """Milliseconds that a request waits for its append."""

    offsets_commit_required_acks: int = setting(-1, whole_number(-1, 1))
    """When a commit is acknowledged (R27): 0 at once, 1 when the log holds it, -1 when storage holds it durably."""

    offset_commit_value_version: int = setting(4, whole_number(0, 4))
    """Version of the values of offset commits; a commit with its own retention time always has version 1 (R7)."""

    transaction_max_timeout_ms: int = setting(900_000, whole_number(1, _INT32_MAX))
    """Largest timeout of a transaction; after this time a transaction that its process left open is aborted."""

    offsets_storage: Literal["kafka", "zookeeper"] = setting("kafka", one_of("kafka", "zookeeper"))
    """The target of commits: the log, or ZooKeeper; old consumers' `offsets.storage`."""

    dual_commit_enabled: bool = setting(default=False, allowed=TRUE_OR_FALSE)
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
class ZooKeeperSettings(Section):
    """[zookeeper]: the connection to ZooKeeper. Names are those of a broker's settings zookeeper.*, with _ for dots."""

    connect: str = setting("", matching(_ZOOKEEPER_CONNECT, "HOST:PORT[,HOST:PORT...][/chroot]"))
    """Addresses of the servers, and the node below which Kafka keeps its nodes."""

    session_timeout_ms: int = setting(6_000, whole_number(1, _INT32_MAX))
    """Milliseconds after which ZooKeeper ends the session of a silent client."""

    connection_timeout_ms: int = setting(6_000, whole_number(1, _INT32_MAX))
    """Milliseconds to wait for a connection, and for a reconnection."""

    digest: str = setting("", ANY_TEXT, is_secret=True)
    """User and password of the authentication scheme `digest`, as USER:PASSWORD, ``env:NAME`` or ``file:PATH``."""

    ssl_client_enable: bool = setting(default=False, allowed=TRUE_OR_FALSE)
    """Whether the connection uses TLS."""

    ssl_truststore_location: str = setting("", ANY_TEXT)
    """PEM file with the certificates to trust; by default those of the system."""

    ssl_keystore_location: str = setting("", ANY_TEXT)
    """PEM file with the client's private key and its certificates."""

    ssl_keystore_password: str = setting("", ANY_TEXT, is_secret=True)
    """Password of the private key: the text, ``env:NAME`` or ``file:PATH``."""


@dataclass(frozen=True, slots=True)
class TopicSettings(Section):
    """[topic]: how `follow` reads a broker's offsets topic."""

    name: str = setting("__consumer_offsets", matching(TOPIC_NAME, "the name of a topic"))
    """The topic to follow."""

    min_records_per_batch: int = setting(1_000, whole_number(1, _INT32_MAX))
    """Number of record offsets for which a batch waits: fewer batches take less time and leave fewer files."""

    min_records_wait_ms: int = setting(2_000, whole_number(0, _INT32_MAX))
    """Milliseconds after which a batch starts with fewer, from the first new record on."""

    max_records_per_batch: int = setting(1_000_000, whole_number(1, _INT32_MAX))
    """Largest number of record offsets in a batch: it divides the first read of a long log into several batches."""

    watch_interval_ms: int = setting(5_000, whole_number(100, _INT32_MAX))
    """Milliseconds between two requests for the topic's identity and its offsets."""

    note_interval_ms: int = setting(30_000, whole_number(100, _INT32_MAX))
    """Milliseconds between two writes of the reading's progress to the store."""

    open_transaction_warning_ms: int = setting(900_000, whole_number(1, _MS_MAX))
    """Age in milliseconds at which an open transaction causes a warning: the broker's transaction.max.timeout.ms."""


@dataclass(frozen=True, slots=True)
class QuestionSettings(Section):
    """[questions]: how commands that read a store answer."""

    max_unfolded_records: int = setting(200_000, whole_number(0, _INT32_MAX))
    """Largest number of records that a question folds itself, because the stream has not folded them yet; 0: none."""


@dataclass(frozen=True, slots=True)
class LagSettings(Section):
    """[lag]: positions of topics, and the lag computed from them."""

    sample_interval_ms: int = setting(30_000, whole_number(0, _INT32_MAX))
    """Milliseconds between two samples of topics' positions that `follow` takes; 0 takes none."""

    sample_retention_hours: int = setting(840, whole_number(0, HOURS_MAX))
    """Hours for which upkeep keeps samples of positions; 0 keeps all. Default: 35 days."""

    sample_topics: str = setting(".*", PATTERN)
    """Regular expression of the topics to sample; it must match the whole name."""

    window_commits: int = setting(10, whole_number(1, 1_000))
    """Number of commits from which the status of a partition is evaluated."""

    metrics_groups: str = setting(".*", PATTERN)
    """Regular expression of the groups with metrics of their own; it must match the whole group id."""

    metrics_max_series: int = setting(10_000, whole_number(0, _INT32_MAX))
    """Largest number of series of one metric of groups; metrics of further groups are left out, with a warning."""

    metrics_partitions: bool = setting(default=False, allowed=TRUE_OR_FALSE)
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


def _flat(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name, value in leaves(values):
        if isinstance(value, bool):
            yield name, str(value).lower()
        elif isinstance(value, (str, int)):
            yield name, str(value)
        else:
            raise ConfigError(f"{name}: it takes text, a whole number, true or false")


@dataclass(frozen=True, slots=True)
class S3Settings(Section):
    """[s3]: access to stores on S3. A setting NAME is the variable AWS_NAME of Amazon's programs, without secrets."""

    endpoint_url: str = setting(
        "", matching(r"(https?://[^\s/@]+/?)?", 'the address of a server, as "http://minio:9000"')
    )
    """Address of a server that is not Amazon's."""

    region: str = setting("", matching(r"[\w-]*", 'a region, as "eu-west-3"'))
    """Region of the bucket."""

    virtual_hosted_style_request: bool = setting(default=False, allowed=TRUE_OR_FALSE)
    """Whether the name of the bucket is in the host's name, not in the path."""

    profile: str = setting("", ANY_TEXT)
    """Profile in the files of Amazon's programs, with an access key."""

    role_arn: str = setting("", ANY_TEXT)
    """Role of the web identity."""

    role_session_name: str = setting("", ANY_TEXT)
    """Name of the role's session."""

    web_identity_token_file: str = setting("", ANY_TEXT)
    """File with the token of a web identity."""

    def __post_init__(self) -> None:
        """Check each value, and that a role has a web identity: the libraries know no other way to a role."""
        Section.__post_init__(self)
        if bool(self.role_arn) != bool(self.web_identity_token_file):
            raise ConfigError(
                "role_arn and web_identity_token_file: give both or none; for a role without a web identity set the "
                "variables that `aws configure export-credentials --profile NAME --format env` prints"
            )

    def variables(self) -> dict[str, str]:
        """Return the variables of the settings that are set."""
        values = {f"AWS_{each.name.upper()}": getattr(self, each.name) for each in fields(self)}
        return {name: str(value).lower() if value is True else value for name, value in values.items() if value}


@dataclass(frozen=True, slots=True)
class SparkSettings(Section):
    """[spark]: the session that this program starts if none is running. Options of spark-submit override these."""

    master: str = setting("local[*]", matching(r"\S+", 'a Spark master, as "local[2]" or "spark://host:7077"'))
    """Spark's master URL, or that of a Spark Connect server, as `sc://host:15002`."""

    shuffle_partitions: int = setting(2, whole_number(1, 100_000))
    """Tasks of a shuffle: about two per core."""

    driver_memory: str = setting(AUTO_MEMORY, matching(rf"{AUTO_MEMORY}|[1-9][0-9]*[kmgt]", 'a size as "512m" or "4g"'))
    """Heap of the JVM that this program starts. With auto it is 512m for `follow` and `ingest-topic`, else 2g."""
