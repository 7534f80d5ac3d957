"""An operator's night: twelve incidents on a live broker, and what `status`, the alerts and the questions say of each.

The commits of hours before lie in the broker's log when it starts, and old records in its topics. docs/operations.md
has the table of the incidents; the test makes its rows again, and compares them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.broker import replace_segments
from offsets_pipeline.common.clock import shown_time
from offsets_pipeline.semantics.partitioning import partition_for
from offsets_pipeline.store.delta.properties import MIRRORED, StoreProperties
from offsets_pipeline.store.delta.store_folder import create_tables
from tests.kafka.connect_worker import connect_worker
from tests.kafka.live import LiveBroker, wait_until
from tests.kafka.past_log import PastLog
from tests.programs import OFFSETS, QUICK, in_process
from tests.promtool import find_promtool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.kafka.brokers import KafkaJvm
    from tests.kafka.live_clients import Consumer
    from tests.promtool import Promtool
    from tests.rest_client import RestClient

#: Some minutes: groups count as stopped after one, and the metrics of groups are counted every half minute.
pytestmark = [pytest.mark.process, pytest.mark.streaming, pytest.mark.slow, pytest.mark.long]

PARTITIONS = 3
SETTINGS = "offsets.retention.minutes=10080\noffsets.retention.check.interval.ms=2000\n"
CONFIG = """
[spark]
driver_memory = "1g"
"""
MINUTE_MS = 60_000
RETENTION_MS = 7 * 24 * 60 * MINUTE_MS
HISTORY_MINUTES, A_MINUTE = 30, 10  # of the topic `orders`, and its records a minute
EXPIRES_IN_MS = 200_000  # from the start of the broker on
END = HISTORY_MINUTES * A_MINUTE
#: The longest time from an incident until `status` has it: a minute behind, and the time that follower and test take.
PATIENCE_SECONDS = 150
MINUTES = int(os.environ.get("OFFSETS_TEST_MINUTES", "10"))  # of healthy traffic
Row = tuple[str | None, str]  # group and problem
Scrape = tuple[float, str]  # time in seconds, and the metrics


class Incident(NamedTuple):
    """An incident: the row of `status`, the alerts that fire, the question, what it answers, and the repair.

    ``answer`` is a regular expression; ``repair`` and ``then`` are as in docs/operations.md.
    """

    row: Row
    alerts: tuple[str, ...]
    question: str
    answer: str
    repair: str
    then: str


_BACK = "the offsets of before"
#: In the order of the table in docs/operations.md.
INCIDENTS: Mapping[str, Incident] = {
    "a consumer stops": Incident(
        ("billing", "stopped"),
        ("OffsetsGroupStopped",),
        "lag",
        "billing +orders +0 .* STOP ",
        "start the consumer",
        "at the log end",
    ),
    "a consumer is slow": Incident(
        ("reports", "slow"),
        ("OffsetsGroupBehind",),
        "lag",
        "reports +orders +0 .* WARN ",
        "more consumers",
        "at the log end",
    ),
    "a consumer goes back": Incident(
        ("audit", "rewound"),
        ("OffsetsGroupRewound", "OffsetsGroupBehind"),
        "history",
        r",rewind,orders,0,200,-\d+,",
        "`restore`",
        _BACK,
    ),
    "a member joins and leaves": Incident(
        ("shipping", "rebalance loop"),
        ("OffsetsRebalanceLoop",),
        "history",
        r"generation 12; left .*\n.* generation 13;",
        "mend the member",
        "one row, for ten minutes",
    ),
    "a topic is deleted": Incident(
        ("exports", "deleted"),
        (),
        "why",
        "deleted at .* with its topic, because .* tombstones of 2 groups",
        "create the topic, `restore`",
        _BACK,
    ),
    "a group expires": Incident(
        ("monthly", "deleted"),
        ("OffsetsExpireSoon",),
        "why",
        r"deleted at .* by retention \(likely\), because ",
        "`restore`",
        _BACK,
    ),
    "a transaction hangs": Incident(
        ("ledger", "open transaction"),
        ("OffsetsOpenTransaction",),
        "log-info",
        '"open_producer_id": 4021',
        "`kafka-transactions --abort`",
        "the offset of before the transaction",
    ),
    "the broker restarts": Incident(
        (None, "broker away"),
        ("OffsetsBrokerAway",),
        "check",
        "^ERR: .*; store broker away: no broker answers at ",
        "start the broker",
        "no row",
    ),
    "`follow` is killed": Incident(
        (None, "mirror behind"),
        ("OffsetsFollowAway",),
        "check",
        "^ERR: .*; store mirror behind: .* run `offsets follow`",
        "start `follow`",
        "no row",
    ),
    "a wrong reset": Incident(
        ("invoices", "rewound"),
        ("OffsetsGroupRewound", "OffsetsGroupBehind"),
        "history",
        ",rewind,payments,0,0,-10,",
        "`restore`",
        _BACK,
    ),
    "a group is deleted": Incident(
        ("orders-api", "deleted"),
        (),
        "why",
        "deleted at .* with its group, because ",
        "`restore`",
        _BACK,
    ),
    "a sink connector is stuck": Incident(
        ("connect-archive", "stopped"),
        ("OffsetsGroupStopped",),
        "describe --members",
        "CLIENT-ID: connector-consumer-archive-0",
        "resume the connector",
        "at the log end",
    ),
}
#: Groups of one log partition with the deleted topic: tombstones of several groups are no request of an operator.
EXPORTING = (
    "exports",
    next(
        name
        for name in map("exports-{}".format, range(99))
        if partition_for(name, PARTITIONS) == partition_for("exports", PARTITIONS)
    ),
)
AT_ONCE = ("a consumer is slow", "a transaction hangs")  # in the log before `follow` read it first


@dataclass
class Night:
    """A broker, `follow` beside it, and the groups at work."""

    broker: LiveBroker
    root: Path
    folder: Path
    began_ms: int
    worker: Consumer | None = None
    ends: int = END
    billing_works: bool = True
    audit_offset: int = END
    audit_before: int = END
    audit_is_back: bool = False

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.prom"

    def ask(self, command: str, *more: object) -> subprocess.CompletedProcess[str]:
        return in_process(self.root, command, "--store", self.store, *map(str, more))

    def live(self, command: str, *more: object) -> subprocess.CompletedProcess[str]:
        return self.ask(command, "--bootstrap-server", self.broker.address, *more)

    def status(self) -> dict[Row, dict[str, Any]]:
        done = self.live("status", "--format", "json")
        assert done.returncode == 0, done.stderr
        return {(row["group"], row["problem"]): row for row in json.loads(done.stdout)["problems"]}

    def work(self) -> None:
        """A moment of traffic: a record, and the commits of the groups at work."""
        self.broker.produce("orders", 0, 1)
        self.ends += 1
        assert self.worker is not None
        self.worker.poll()
        self.worker.commit({("orders", 0): self.ends})
        if self.billing_works:
            self.broker.commit("billing", {("orders", 0): self.ends})
        if self.ends % (30 if self.audit_is_back else 10) == 0:  # a group counts as rewound for ten commits
            self.audit_offset = self.audit_offset + 1 if self.audit_is_back else self.ends
            self.broker.commit("audit", {("orders", 0): self.audit_offset})

    def until(self, what: str, holds: Callable[[Mapping[Row, dict[str, Any]]], bool], *, working: bool = True) -> None:
        """Wait for a status, with traffic meanwhile."""
        found = dict[Row, dict[str, Any]]()

        def is_so() -> bool:
            if working:
                self.work()
            found.clear()
            found.update(self.status())
            return holds(found)

        wait_until(is_so, what, PATIENCE_SECONDS, lambda: str({row: each["detail"] for row, each in found.items()}))

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """The broker's own answer."""
        return {
            (each["topic"], each["partition"]): each["offset"] for each in self.broker.answers.offsets([group])[group]
        }

    def scrape(self, has: Callable[[dict[str, dict[str, float]]], bool], *, working: bool = True) -> tuple[float, str]:
        """The metrics of `follow`, once they are like this: by name and labels."""
        found = ""

        def is_so() -> bool:
            nonlocal found
            if working:
                self.work()
            found = self.metrics.read_text(encoding="utf-8") if self.metrics.exists() else ""
            values: dict[str, dict[str, float]] = {}
            for sample in (each for family in text_string_to_metric_families(found) for each in family.samples):
                values.setdefault(sample.name, {})[" ".join(sample.labels.values())] = sample.value
            return has(values)

        wait_until(is_so, "the metrics are not so", PATIENCE_SECONDS, lambda: found)
        return time.time(), found

    @contextmanager
    def following(self) -> Iterator[subprocess.Popen[bytes]]:
        command = (OFFSETS, "follow", "--store", self.store, "--config", self.folder / "offsets.toml")
        at = ("--bootstrap-server", self.broker.address, "--metrics-file", self.metrics)
        with (self.folder / "follow.err").open("ab") as err:
            process = subprocess.Popen(
                [*command, *at],
                cwd=self.root,
                stdout=subprocess.DEVNULL,
                stderr=err,
                start_new_session=True,
                env={**os.environ, **QUICK},
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def past(now_ms: int) -> PastLog:
    """The commits of the hours before."""
    log = PastLog(now_ms, PARTITIONS)
    log.commit("monthly", "payments", 0, RETENTION_MS - EXPIRES_IN_MS, 10)
    for age in range(20, 0, -2):  # the window of its status: it stays slow for as long
        log.commit("reports", "orders", 0, age * MINUTE_MS, 3 * (HISTORY_MINUTES - age))
    for ago, offset in ((60, 5), (29, 10)):
        log.commit("invoices", "payments", 0, ago * MINUTE_MS, offset)
    log.commit("ledger", "payments", 0, 25 * MINUTE_MS, 10)
    log.commit("ledger", "payments", 0, 20 * MINUTE_MS, 4, producer_id=4_021)
    return log


def send_past(broker: LiveBroker, folder: Path, now_ms: int) -> Path:
    """Records of the last half hour; returns the log ends of each minute as a file of positions."""
    broker.create_topic("orders", 1)
    broker.create_topic("payments", 1)
    broker.create_topic("gone", 1)
    lines = ["topic,partition,log_start_offset,log_end_offset,sampled_at"]
    for minute in range(HISTORY_MINUTES):
        at_ms = now_ms - (HISTORY_MINUTES - minute) * MINUTE_MS
        broker.send("orders", [(0, None, "x")] * A_MINUTE, at_ms)
        lines.append(f"orders,0,0,{(minute + 1) * A_MINUTE},{shown_time(at_ms)}")
    broker.send("payments", [(0, None, "x")] * 10, now_ms - HISTORY_MINUTES * MINUTE_MS)
    for ago, end in ((HISTORY_MINUTES + 1, 0), (HISTORY_MINUTES, 10)):
        lines.append(f"payments,0,0,{end},{shown_time(now_ms - ago * MINUTE_MS)}")
    file = folder / "positions.csv"
    file.write_text("\n".join(lines))
    return file


@contextmanager
def night(kafka: KafkaJvm, root: Path, folder: Path, hours_before: Callable[[int], PastLog]) -> Iterator[Night]:
    """The evening: all groups at work, but for what the log of the hours before has."""
    (folder / "offsets.toml").write_text(CONFIG)
    broker = LiveBroker(kafka, folder / "broker", PARTITIONS, SETTINGS)
    now_ms = int(time.time() * 1000)
    replace_segments(hours_before(now_ms).segments(folder), broker.folder, PARTITIONS)
    broker.start()
    try:
        positions = send_past(broker, folder, now_ms)
        found = Night(broker, root, folder, now_ms)
        create_tables(str(found.store), StoreProperties(MIRRORED, PARTITIONS, cluster_id=broker.cluster_id()))
        assert found.ask("sample-topic-offsets", "--positions", positions).returncode == 0
        found.worker = broker.consumer("shop", ["orders"])
        found.worker.join()
        for group, places in (
            ("orders-api", {("payments", 0): 10}),
            ("shipping", {("payments", 0): 10}),
            *((each, {("gone", 0): 0, ("payments", 0): 10}) for each in EXPORTING),
        ):
            broker.commit(group, places)
        found.work()
        yield found
    finally:
        broker.close()


def test_twelve_incidents_of_a_night(kafka: KafkaJvm, root: Path, tmp_path: Path) -> None:
    seconds: dict[str, float] = {}
    asked: dict[str, str] = {}
    promtool = find_promtool(root / "conf" / "prometheus" / "offsets.rules.yml", tmp_path)

    def since(incident: str, began: float) -> None:
        row = INCIDENTS[incident].row
        of.until(f"{incident}: not {row}", lambda found: row in found)
        seconds[incident] = time.monotonic() - began

    with night(kafka, root, tmp_path, past) as of, ExitStack() as running:
        broker = of.broker
        following = running.enter_context(of.following())
        member = joined(of)
        known = {INCIDENTS[each].row for each in AT_ONCE} | {("monthly", "expires")}
        of.until("the evening", lambda found: found.keys() == known)
        evening = of.scrape(lambda each: "store monthly" in each.get("offsets_group_next_expiry_timestamp_seconds", {}))

        # The broker restarts; later the follower is killed.
        began = time.monotonic()
        broker.stop()
        of.until("broker away", lambda found: INCIDENTS["the broker restarts"].row in found, working=False)
        seconds["the broker restarts"] = time.monotonic() - began
        away = of.scrape(lambda each: each["offsets_topic_up"] == {"": 0}, working=False)
        asked["the broker restarts"] = of.live("check").stdout
        broker.start()
        of.until("the broker is back", lambda found: found.keys() - {("monthly", "deleted")} <= known)
        os.killpg(following.pid, signal.SIGKILL)
        began = time.monotonic()
        following.wait()
        since("`follow` is killed", began)
        asked["`follow` is killed"] = of.live("check").stdout
        running.enter_context(of.following())
        of.until("follow is back", lambda found: INCIDENTS["`follow` is killed"].row not in found)
        back = of.scrape(lambda each: "store shipping" in each.get("offsets_group_epoch", {}))

        # Eight incidents at once.
        worker = running.enter_context(connect_worker(kafka, broker))
        start_connector(worker, of)
        then, before = {}, shown_time(int(time.time() * 1000))
        of.work()
        for incident, happens in incidents_of(of, worker, member).items():
            then[incident] = time.monotonic()
            happens()
        left_seconds = (of.began_ms + EXPIRES_IN_MS) / 1000 - time.time()
        waiting = then | {"a group expires": time.monotonic() + left_seconds}

        def all_seen(found: Mapping[Row, object]) -> bool:
            for incident in [each for each in waiting if INCIDENTS[each].row in found]:
                seconds[incident] = time.monotonic() - waiting.pop(incident)
            return not waiting

        of.until("all incidents", all_seen)
        seconds |= dict.fromkeys(AT_ONCE, 0.0)
        bad = {"store billing STOP", "store connect-archive STOP", "store audit REWIND", "store invoices REWIND"}
        during = of.scrape(lambda each: bad <= each["offsets_group_partitions"].keys())
        asked |= {incident: answer(of, incident) for incident in INCIDENTS if incident not in asked}

        repair(of, worker, before)
        # ten minutes have to pass until a loop is none any more
        of.until("the repairs", lambda found: found.keys() == {("shipping", "rebalance loop")})
        morning = of.scrape(
            lambda each: (
                not each.get("offsets_group_partitions")
                and set(each.get("offsets_topic_open_transaction_seconds", {}).values()) <= {0}
            )
        )
    for incident, text in asked.items():
        assert re.search(INCIDENTS[incident].answer, text), (incident, text)
    assert_firing(promtool, evening, away, back, during, morning)
    assert_documented(root, seconds)


def test_healthy_traffic_has_no_problem_and_no_alert(kafka: KafkaJvm, root: Path, tmp_path: Path) -> None:
    promtool = find_promtool(root / "conf" / "prometheus" / "offsets.rules.yml", tmp_path)
    scrapes = []
    with night(kafka, root, tmp_path, lambda now_ms: PastLog(now_ms, PARTITIONS)) as of, of.following():
        member = of.broker.consumer("shipping", ["payments"], group_protocol="consumer")
        member.join()
        transactions = of.broker.transaction("ledger-1")
        of.until("all is well", lambda found: not found)
        began = time.monotonic()
        for minute in range(MINUTES + 1):
            while time.monotonic() < began + minute * 60:
                member.poll()
                member.commit({("payments", 0): 10})
                transactions.begin("ledger", {("payments", 0): 10})
                transactions.commit()
                of.work()
                assert of.status() == {}
            scrapes.append(of.scrape(lambda each: "kafka_consumergroup_group_sum_lag" in each))
    assert len(scrapes) == MINUTES + 1
    promtool.assert_firing(scrapes, {minute: {} for minute in range(MINUTES + 1)})


def start_connector(worker: RestClient, of: Night) -> None:
    """A sink that has read and committed some records."""
    of.broker.create_topic("events", 1)
    sink = "org.apache.kafka.connect.file.FileStreamSinkConnector"
    config = {"connector.class": sink, "topics": "events", "file": str(of.folder / "archive.txt")}
    assert worker.send("PUT", "/connectors/archive/config", config).status == 201
    for end in (5, 10):
        of.broker.produce("events", 0, 5)
        wait_until(lambda: of.committed("connect-archive") == {("events", 0): end}, "the sink reads")  # noqa: B023


def joined(of: Night) -> Consumer:
    """A member of `shipping` that has joined."""
    found = of.broker.consumer("shipping", ["payments"], group_protocol="classic")
    found.join()
    return found


def incidents_of(of: Night, worker: RestClient, member: Consumer) -> dict[str, Callable[[], object]]:
    """What happens, by incident, in this order."""
    broker = of.broker

    def stop_billing() -> None:
        of.billing_works = False

    def pause() -> None:
        assert worker.send("PUT", "/connectors/archive/pause").status == 202
        wait_until(
            lambda: worker.send("GET", "/connectors/archive/status").body["tasks"][0]["state"] == "PAUSED", "it pauses"
        )
        broker.produce("events", 0, 10)

    def rewind() -> None:
        of.audit_before, of.audit_offset, of.audit_is_back = of.audit_offset, 200, True
        broker.commit("audit", {("orders", 0): 200})

    def rebalance() -> None:
        leaving = member
        for _ in range(6):  # two rebalances each time
            leaving.close()
            leaving = joined(of)

    return {
        "a consumer stops": stop_billing,
        "a sink connector is stuck": pause,
        "a consumer goes back": rewind,
        "a topic is deleted": lambda: broker.delete_topic("gone"),
        "a group is deleted": lambda: broker.delete_group("orders-api"),
        "a wrong reset": lambda: broker.tool(
            *("--reset-offsets", "--group", "invoices", "--all-topics", "--to-earliest", "--execute")
        ),
        "a member joins and leaves": rebalance,
    }


def answer(of: Night, incident: str) -> str:
    """What the question of an incident answers."""
    (group, _), _, question, *_ = INCIDENTS[incident]
    of_group, topic = ("--group", group), "gone" if incident == "a topic is deleted" else "payments"
    done = {
        "why": lambda: of.ask("why", *of_group, "--topic", topic, "--partition", 0),
        "log-info": lambda: of.ask("log-info", "--format", "json"),
        "lag": lambda: of.live("lag", *of_group),
        "history": lambda: of.ask("history", *of_group, "--format", "csv"),
        "describe --members": lambda: of.live("describe", *of_group, "--members"),
    }[question]()
    assert done.returncode == 0, done.stderr
    return done.stdout


def repair(of: Night, worker: RestClient, before: str) -> None:
    """Repair everything; what is restored is again as the broker had it before the incidents."""
    broker = of.broker
    of.billing_works, of.audit_is_back = True, False
    broker.commit("reports", {("orders", 0): of.ends})
    broker.create_topic("gone", 1)
    groups = [f"--group={each}" for each in ("audit", "invoices", "orders-api", *EXPORTING)]
    assert of.live("restore", "--as-of", before, *groups, "--execute").returncode == 0
    expiry = shown_time(of.began_ms + EXPIRES_IN_MS - 1)
    assert of.live("restore", "--as-of", expiry, "--group", "monthly", "--execute").returncode == 0
    broker.abort_transactions()
    assert worker.send("PUT", "/connectors/archive/resume").status == 202
    paid = {("payments", 0): 10}
    assert of.committed("audit") == {("orders", 0): of.audit_before}
    assert {group: of.committed(group) for group in ("invoices", "orders-api", "monthly", "ledger")} == dict.fromkeys(
        ("invoices", "orders-api", "monthly", "ledger"), paid
    )
    assert [of.committed(each) for each in EXPORTING] == [paid | {("gone", 0): 0}] * 2


def assert_firing(
    promtool: Promtool, evening: Scrape, away: Scrape, back: Scrape, during: Scrape, morning: Scrape
) -> None:
    """Each state lasts for some minutes: an alert fires if its condition holds for so long."""
    gone = (during[0], "")
    scrapes = [evening] * 7 + [away] * 4 + [gone] * 7 + [back] * 3 + [during] * 10 + [morning] * 15

    def of(*groups: str) -> list[str]:
        return [f'cluster_name="store", group="{group}"' for group in groups]

    before = {"OffsetsGroupBehind": of("reports"), "OffsetsExpireSoon": of("monthly")}
    hanging = {"OffsetsOpenTransaction": [f'log_partition="{partition_for("ledger", PARTITIONS)}"']}
    incidents = {
        "OffsetsGroupStopped": of("billing", "connect-archive"),
        "OffsetsGroupRewound": of("audit", "invoices"),
        "OffsetsGroupBehind": of("reports", "audit", "invoices"),
        "OffsetsRebalanceLoop": of("shipping"),
        **hanging,
    }
    promtool.assert_firing(
        scrapes,
        {
            6: before | hanging,
            10: before | {"OffsetsBrokerAway": [""]},  # of transactions a follower without a broker knows nothing
            17: {"OffsetsFollowAway": [""]},
            27: incidents,
            45: {},
        },
    )
    fire = {"OffsetsBrokerAway", "OffsetsFollowAway", *before, *incidents}
    assert {alert for each in INCIDENTS.values() for alert in each.alerts} == fire


def assert_documented(root: Path, seconds: Mapping[str, float]) -> None:
    """The table has these rows, and `status` took no longer than it says."""
    page = (root / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = [row for row in page.splitlines() if row.startswith(tuple(f"| {each} |" for each in INCIDENTS))]
    most = {row.split(" | ")[0].removeprefix("| "): row.split(" | ")[2] for row in rows}
    assert rows == [
        f"| {name} | `{each.row[1]}` | {most.get(name)} | {', '.join(f'`{alert}`' for alert in each.alerts) or '-'} "
        f"| `{each.question}` | {each.repair} | {each.then} |"
        for name, each in INCIDENTS.items()
    ]
    late = {name: took for name, took in seconds.items() if took > int(most[name].removesuffix(" s"))}
    assert not late
