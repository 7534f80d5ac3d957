"""Commands about connectors of Kafka Connect."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from offsets_pipeline.cli.command import HelpSection, grouped, option
from offsets_pipeline.cli.options import (
    LiveBrokers,
    OneStore,
    ServiceAccess,
    SeveralStores,
    format_option,
    listen_option,
)
from offsets_pipeline.cli.output import write_json, write_rows
from offsets_pipeline.cli.values import FILE, PATH
from offsets_pipeline.common.input_text import printable
from offsets_pipeline.semantics.topic_kind import TopicKind

if TYPE_CHECKING:
    from pathlib import Path

    from offsets_pipeline.common.config import Settings
    from offsets_pipeline.connect.offset_management import OffsetManagement
    from offsets_pipeline.connect.sink_offsets import SinkOffsets

connectors = HelpSection("Connect")


class OfConnector(OneStore):
    """The options of the commands about one connector."""

    connector: str = option("--connector", required=True, metavar="C", help="The connector.")

    @contextmanager
    def opened(self, settings: Settings) -> Iterator[OffsetManagement]:
        """Open the owned store, to manage its connectors. Raises as `ConnectLog.open`."""
        from offsets_pipeline.cli.opened import open_folder
        from offsets_pipeline.connect.connect_log import ConnectLog
        from offsets_pipeline.connect.offset_management import OffsetManagement

        with ConnectLog.open(open_folder(self.store, settings)) as log:
            yield OffsetManagement(log)


@connectors.command(
    "list",
    "offsets connect list --store connect",
    "offsets connect list --store connect --format json",
    "offsets connect list --store prod/connect --store test/offsets",
)
class ListConnectors(SeveralStores):
    """Show connectors: type, state, number of offsets. Starts no Spark.

    Reads the stores STORE-status and STORE-configs of a worker's other topics as well, if they exist.
    """

    format_: str = format_option()

    def run(self, settings: Settings) -> None:
        """Show the connectors. Raises StoreMismatch for a store without a topic of Connect."""
        from offsets_pipeline.cli.answer_times import answer_time_of, write_listing
        from offsets_pipeline.cli.opened import open_beside, open_readers
        from offsets_pipeline.questions.query.connectors import ConnectorInfo, list_connectors

        listed: list[dict[str, Any]] = []
        times = []
        for store, own in open_readers(self.stores, settings).items():
            own.properties.require_topic_kind(own.location, *(kind for kind in TopicKind if kind.is_connect))
            readers = [own, *open_beside(store, own, settings)]
            listed += [{**vars(each), "cluster": own.cluster} for each in list_connectors(readers)]
            times += [(own.cluster, answer_time_of(reader, reader.location, settings)) for reader in readers]
        write_listing("connectors", list(ConnectorInfo.__dataclass_fields__), listed, times, self.format_)


@connectors.command(
    "describe",
    "offsets connect describe --store connect --connector files",
    "offsets connect describe --store connect --connector files --format json",
    "offsets connect describe --store groups --configs connect-configs --connector sink",
)
class DescribeConnector(OfConnector):
    """Show a connector's offsets. Starts no Spark.

    A store of __consumer_offsets answers for a sink connector, by the offsets of its group.
    """

    configs: str | None = option(
        "--configs",
        metavar="STORE",
        type=PATH,
        help="Store of config.storage.topic, which names the group of a sink connector. Default: STORE-configs.",
    )
    format_: str = format_option("Output format; json is the answer of Connect's REST interface.")

    def run(self, settings: Settings) -> None:
        """Show the offsets. Raises NoSuchConnector, StoreMismatch."""
        from offsets_pipeline.cli.answer_times import answer_time_of
        from offsets_pipeline.cli.opened import open_beside, open_reader
        from offsets_pipeline.common.warnings import warn
        from offsets_pipeline.connect.connector_offsets import sink_group
        from offsets_pipeline.questions.query.connectors import describe_connector
        from offsets_pipeline.semantics.connect_keys import canonical_json

        reader = open_reader(self.store, settings)
        if self.configs is not None:
            configs = [open_reader(self.configs, settings)]
        else:
            beside = open_beside(self.store, reader, settings)
            configs = [each for each in beside if each.properties.topic_kind is TopicKind.CONNECT_CONFIGS]
        answer = describe_connector(reader, self.connector, *configs)
        if not (answer["offsets"] or configs) and reader.properties.topic_kind is TopicKind.CONSUMER_OFFSETS:
            warn(f"{self.store} has no offsets of a group {sink_group(self.connector)}; check the connector's name")
        answer_time_of(reader, self.store, settings)
        if self.format_ == "json":
            write_json(answer)  # of Connect's REST interface, which has no more fields
        else:
            rows = [[canonical_json(each["partition"]), json.dumps(each["offset"])] for each in answer["offsets"]]
            write_rows(["partition", "offset"], rows, self.format_)


@connectors.command(
    "config",
    "offsets connect config --store owned --connector files --settings files.json",
    "offsets connect config --store owned --connector files",
)
class Configure(OfConnector):
    """Configure a connector of an owned store, or show its settings.

    Creates the connector if it does not exist. Secrets must be references such as ${file:/run/secrets/db:password}.
    """

    file: Path | None = option(
        "--settings",
        type=FILE,
        help="JSON object of settings, as PUT /connectors/C/config takes it. - is stdin. Without it, show the "
        "settings.",
    )

    def run(self, settings: Settings) -> None:
        """Configure the connector. Raises NoSuchConnector, BadConnectRequest, NoSuchPath."""
        from offsets_pipeline.connect.request_bodies import settings_of

        configuration = None if self.file is None else settings_of(*_read(self.file))
        with self.opened(settings) as management:
            if configuration is None:
                write_json(management.info(self.connector)["config"])
            else:
                created, _info = management.put_config(self.connector, configuration)
                done = "created" if created else "configured"
                sys.stdout.write(f"connector {printable(self.connector)} is {done} in {self.store}\n")


class _SetState(OfConnector):
    """A command that sets the target state of a connector."""

    state: str

    def run(self, settings: Settings) -> None:
        """Set the state. Raises NoSuchConnector."""
        with self.opened(settings) as management:
            management.set_target_state(self.connector, self.state)
        sys.stdout.write(f"connector {printable(self.connector)} is {self.state} in {self.store}\n")


@connectors.command("stop", "offsets connect stop --store owned --connector files")
class Stop(_SetState):
    """Stop a connector of an owned store: its tasks write no offsets."""

    state = "STOPPED"


@connectors.command("pause", "offsets connect pause --store owned --connector files")
class Pause(_SetState):
    """Pause a connector of an owned store."""

    state = "PAUSED"


@connectors.command("resume", "offsets connect resume --store owned --connector files")
class Resume(_SetState):
    """Resume a connector of an owned store."""

    state = "RUNNING"


class _ChangesOffsets(OfConnector):
    """A command that changes offsets of a connector of an owned store, or of a sink connector's group."""

    configs: str | None = option(
        "--configs",
        metavar="STORE",
        type=PATH,
        help="Store of config.storage.topic, which has group and state of a sink connector. Default: the group "
        "connect-C, in any state.",
    )
    live: LiveBrokers = grouped(LiveBrokers)

    def change(self, settings: Settings, request: Callable[[OffsetManagement | SinkOffsets], str]) -> None:
        """Print the answer to a request. Raises as `ConnectLog.open`, `stopped_sink_group` and `mirrored_cluster`."""
        from offsets_pipeline.cli.live_cluster import mirrored_cluster, say_undo
        from offsets_pipeline.cli.opened import open_coordinator, open_folder, open_reader
        from offsets_pipeline.common.clock import SystemClock
        from offsets_pipeline.connect.connect_log import ConnectLog
        from offsets_pipeline.connect.connector_offsets import sink_group
        from offsets_pipeline.connect.offset_management import OffsetManagement
        from offsets_pipeline.connect.sink_offsets import LiveGroups, SinkOffsets
        from offsets_pipeline.coordinator.owned_store import OwnedStore
        from offsets_pipeline.kafka.broker.groups_client import fetch_group_offsets
        from offsets_pipeline.questions.query.connectors import stopped_sink_group

        group_id = sink_group(self.connector)
        if self.configs is not None:
            group_id = stopped_sink_group(self.connector, open_reader(self.configs, settings))
        if self.live.bootstrap_server is not None:
            with mirrored_cluster(self.store, self.live, settings) as cluster:
                held = fetch_group_offsets(cluster, [group_id])[group_id]
                before_ms = SystemClock().now_ms() - 1
                message = request(SinkOffsets(LiveGroups(cluster), group_id))
            say_undo(self, self.live, [group_id] if held else [], before_ms)
            sys.stdout.write(f"{message}\n")
            return
        folder = open_folder(self.store, settings)
        owned = OwnedStore.open(folder, TopicKind.CONNECT, TopicKind.CONSUMER_OFFSETS)
        if owned.properties.topic_kind is TopicKind.CONNECT:
            with ConnectLog.open(folder) as log:
                message = request(OffsetManagement(log))
        else:
            with open_coordinator(owned, settings, [group_id]) as coordinator:
                message = request(SinkOffsets(coordinator, group_id))
        sys.stdout.write(f"{message}\n")


@connectors.command(
    "alter",
    "offsets connect alter --store owned --connector files --offsets offsets.json",
    "offsets connect alter --store groups --connector sink --offsets offsets.json",
    "offsets connect alter --store store --bootstrap-server localhost:9092 --connector sink --offsets offsets.json",
)
class Alter(_ChangesOffsets):
    """Add and replace offsets of a STOPPED connector, in an owned store or the cluster that a store mirrors.

    An offset of null deletes one. Offsets that the file does not name stay. A store for groups, and a cluster, have
    the offsets of sink connectors; the connector's group must have no members.
    """

    file: Path = option(
        "--offsets",
        required=True,
        type=FILE,
        help="JSON as Connect's REST interface takes it: offsets, pairs of partition and offset. - is stdin.",
    )

    def run(self, settings: Settings) -> None:
        """Alter the offsets. Raises NoSuchConnector, BadConnectRequest, NoSuchPath, NonEmptyGroup."""
        from offsets_pipeline.connect.request_bodies import offsets_of

        offsets = offsets_of(*_read(self.file))
        self.change(settings, lambda management: management.alter(self.connector, offsets))


@connectors.command(
    "reset",
    "offsets connect reset --store owned --connector files",
    "offsets connect reset --store store --bootstrap-server localhost:9092 --connector sink",
)
class Reset(_ChangesOffsets):
    """Delete all offsets of a STOPPED connector, in an owned store or the cluster that a store mirrors.

    The group of a sink connector is deleted; it must have no members.
    """

    def run(self, settings: Settings) -> None:
        """Delete the offsets. Raises NoSuchConnector, BadConnectRequest, NonEmptyGroup."""
        self.change(settings, lambda management: management.reset(self.connector))


@connectors.command("delete", "offsets connect delete --store owned --connector files")
class Delete(OfConnector):
    """Delete a connector of an owned store, but not its offsets.

    A connector that is created again with the same name resumes at them; `offsets connect reset` deletes them first.
    """

    def run(self, settings: Settings) -> None:
        """Delete the connector. Raises NoSuchConnector."""
        with self.opened(settings) as management:
            management.delete(self.connector)
        sys.stdout.write(f"connector {printable(self.connector)} is deleted from {self.store}; its offsets stay\n")


@connectors.command(
    "serve",
    "offsets connect serve --store owned",
    "offsets connect serve --store owned --cluster-id lab --listen 8083",
    "offsets connect serve --store owned --listen 0.0.0.0:8083 --token-file /run/secrets/connect-token "
    "--tls-certificate server.pem --tls-key server.key",
)
class Serve(OneStore):
    """Serve the REST interface of Kafka Connect for an owned store.

    Runs until SIGTERM or Ctrl-C.
    """

    listen: tuple[str, int] = listen_option("127.0.0.1:8083")
    cluster_id: str | None = option(
        "--cluster-id", metavar="ID", help="Create the store if it does not exist, for this cluster."
    )
    access: ServiceAccess = grouped(ServiceAccess)
    max_request_bytes: int = option(
        "--max-request-bytes", type=click.IntRange(1), default=1_048_576, help="Limit of a request's body."
    )

    def run(self, settings: Settings) -> None:
        """Serve until a signal stops the service.

        Raises as `ConnectLog.open` and `RestServer`, and as `create_owned` with a cluster id.
        """
        from offsets_pipeline.cli.opened import create_owned, open_folder
        from offsets_pipeline.cli.stopping import serve_until_stopped
        from offsets_pipeline.connect.connect_log import PARTITIONS, ConnectLog
        from offsets_pipeline.connect.connect_service import ConnectService

        if self.cluster_id is not None:
            create_owned(self.store, settings, PARTITIONS, TopicKind.CONNECT, self.cluster_id)
        with ConnectLog.open(open_folder(self.store, settings)) as log:
            what, limit = f"connectors of {self.store} are served", self.max_request_bytes
            serve_until_stopped(what, self.listen, self.access, lambda at: ConnectService(log, at, limit).app, limit)


def _read(file: Path) -> tuple[str, str]:
    """The text of a file, and its name for errors; ``-`` is stdin. Raises NoSuchPath, BadConnectRequest."""
    from offsets_pipeline.errors import BadConnectRequest, NoSuchPath

    name = "stdin" if str(file) == "-" else str(file)
    try:
        return sys.stdin.read() if name == "stdin" else file.read_text(encoding="utf-8"), name
    except OSError as error:
        raise NoSuchPath(f"cannot read {name}: {error.strerror}; name a readable file") from None
    except UnicodeDecodeError as error:
        raise BadConnectRequest(f"{name} is not JSON: not UTF-8 at position {error.start}") from None


connect = click.Group(
    "connect",
    commands=connectors.commands,
    help="Show and change offsets and states of connectors of Kafka Connect.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
