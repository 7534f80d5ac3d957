from __future__ import annotations

import re
import tomllib
from collections import Counter
from dataclasses import FrozenInstanceError, asdict, fields
from typing import TYPE_CHECKING

import pytest

from offsets_pipeline.common.config import Settings, load_settings
from offsets_pipeline.common.config.allowed_values import whole_number
from offsets_pipeline.common.config.sections import FoldSettings, LogSettings
from offsets_pipeline.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "some.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_committed_file_holds_every_setting_with_its_default(root: Path) -> None:
    document = tomllib.loads((root / "conf" / "offsets.toml").read_text(encoding="utf-8"))
    assert document.pop("kafka") == {}
    expected = asdict(Settings())
    assert expected.pop("kafka") == {"options": {}}
    assert document == expected


def test_every_setting_of_the_committed_file_has_a_comment(root: Path) -> None:
    lines = (root / "conf" / "offsets.toml").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if re.match(r"\w+ = ", line):
            assert lines[number - 1].startswith("#"), line


@pytest.mark.parametrize("file", ["conf/log4j2.properties", "conf/spark-defaults.conf", "deploy/yarn/spark.properties"])
def test_no_property_is_set_twice(root: Path, file: str) -> None:
    # The second would replace the first without a word.
    lines = (root / file).read_text(encoding="utf-8").splitlines()
    names = Counter(re.split(r"[\s=]", line)[0] for line in lines if line and not line.startswith("#"))
    assert [name for name, times in names.items() if times > 1] == []


def test_without_a_file_every_setting_has_its_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings(None) == Settings()


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    settings = load_settings(written(tmp_path, '[log]\noffsets_partitions = 5\n[spark]\nmaster = "local[2]"\n'))
    assert settings.log == LogSettings(offsets_partitions=5)
    assert settings.fold == FoldSettings()
    assert settings.spark.master == "local[2]"
    assert settings.spark.shuffle_partitions == Settings().spark.shuffle_partitions


@pytest.mark.parametrize(
    "text",
    [
        "[log]\noffsets.topic.num.partitions = 7\n",
        '[log]\n"offsets.topic.num.partitions" = 7\n',
        "[log]\noffsets_topic_num_partitions = 7\n",
        "[log]\noffsets_topic_num_partitions = 7\noffsets_partitions = 7\n",
    ],
)
def test_number_of_log_partitions_has_kafkas_name_too(tmp_path: Path, text: str) -> None:
    assert load_settings(written(tmp_path, text)) == Settings(log=LogSettings(offsets_partitions=7))


def test_settings_of_a_broker_keep_their_names_with_dots(tmp_path: Path) -> None:
    settings = load_settings(written(tmp_path, "[coordinator]\noffsets.retention.minutes = 5\n"))
    assert settings.coordinator.offsets_retention_minutes == 5


def test_the_path_wins_over_the_environment_and_that_over_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def partitions(path: Path | None) -> int:
        return load_settings(path).log.offsets_partitions

    monkeypatch.chdir(tmp_path)
    assert partitions(None) == 50
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "offsets.toml").write_text("log.offsets_partitions = 1", encoding="utf-8")
    assert partitions(None) == 1
    (tmp_path / "env.toml").write_text("log.offsets_partitions = 2", encoding="utf-8")
    monkeypatch.setenv("OFFSETS_CONF", str(tmp_path / "env.toml"))
    assert partitions(None) == 2
    (tmp_path / "path.toml").write_text("log.offsets_partitions = 3", encoding="utf-8")
    assert partitions(tmp_path / "path.toml") == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[logs]\n",
            "[logs] is not a section; did you mean log? known are log, fold, coordinator, zookeeper, topic, questions",
        ),
        ("log = 3\n", "log: 3 is not allowed; [log] is a section"),
        (
            "[log]\noffset_partitions = 3\n",
            "[log] offset_partitions is not a setting; did you mean offsets_partitions?",
        ),
        (
            "[log]\noffsets_partitions = 50\noffsets.topic.num.partitions = 7\n",
            "[log] offsets_partitions: 50 and 7 differ; give one of them",
        ),
        ("[log]\noffsets.topic.num.partitions = 0\n", "[log] offsets_partitions: 0 is not allowed; it takes a whole"),
        ("[fold]\noffsets.topic.num.partitions = 3\n", "[fold] offsets_topic_num_partitions is not a setting; known"),
        (
            "[questions]\nmax_unfolded_records = nan\n",
            "[questions] max_unfolded_records: nan is not allowed; it takes a whole number from 0 to",
        ),
        (
            "[log]\noffsets_partitions = true\n",
            "[log] offsets_partitions: true is not allowed; it takes a whole number from 1 to 2147483647",
        ),
        (
            "[log]\noffsets_partitions = 0\n",
            "[log] offsets_partitions: 0 is not allowed; it takes a whole number from 1 to 2147483647",
        ),
        (
            "[log]\noffsets_partitions = 2.0\n",
            "[log] offsets_partitions: 2.0 is not allowed; it takes a whole number from 1 to 2147483647",
        ),
        (
            '[log]\ncorrupt_records = "skip"\n',
            '[log] corrupt_records: "skip" is not allowed; it takes "quarantine" or "fail"',
        ),
        (
            '[fold]\ndriver_rows = "5"\n',
            '[fold] driver_rows: "5" is not allowed; it takes a whole number from 0 to 2147483647',
        ),
        (
            "[coordinator]\noffset_commit_value_version = 5\n",
            "[coordinator] offset_commit_value_version: 5 is not allowed; it takes a whole number from 0 to 4",
        ),
        (
            "[coordinator]\noffsets_commit_required_acks = -2\n",
            "[coordinator] offsets_commit_required_acks: -2 is not allowed; it takes a whole number from -1 to 1",
        ),
        (
            '[spark]\ndriver_memory = "2 GB"\n',
            '[spark] driver_memory: "2 GB" is not allowed; it takes a size as "512m" or "4g"',
        ),
        (
            '[spark]\nmaster = ""\n',
            '[spark] master: "" is not allowed; it takes a Spark master, as "local[2]" or "spark://host:7077"',
        ),
    ],
)
def test_a_wrong_setting_is_refused_with_file_name_and_what_is_allowed(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        load_settings(path)
    assert str(refused.value).startswith(f"{path}: {message}")


def test_a_file_may_begin_with_a_mark_of_its_encoding(tmp_path: Path) -> None:
    path = tmp_path / "marked.toml"
    path.write_text("log.offsets_partitions = 2", encoding="utf-8-sig")
    assert load_settings(path).log.offsets_partitions == 2


def test_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "log: 5")
    with pytest.raises(ConfigError, match=re.escape(f"cannot read the settings file {path}: it is not TOML: ")):
        load_settings(path)


@pytest.mark.parametrize("how", ["path", "environment"])
def test_a_named_file_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    path = tmp_path / "gone.toml"
    monkeypatch.setenv("OFFSETS_CONF", str(path))
    with pytest.raises(ConfigError, match=re.escape(f"cannot read the settings file {path}: No such file")):
        load_settings(path if how == "path" else None)


def test_settings_cannot_be_changed_and_a_wrong_one_cannot_be_made() -> None:
    settings = Settings()
    with pytest.raises(FrozenInstanceError):
        settings.log.offsets_partitions = 5  # type: ignore[misc] # what is tested
    with pytest.raises(ConfigError, match="offsets_partitions: -1 is not allowed"):
        LogSettings(offsets_partitions=-1)


def test_every_setting_has_a_rule() -> None:
    for section in fields(Settings):
        if section.name == "kafka":  # of its settings Kafka alone knows the names
            continue
        for setting in fields(getattr(Settings(), section.name)):
            assert setting.metadata["allowed"].words, setting.name


def test_a_whole_number_is_in_a_range_with_both_ends() -> None:
    number = whole_number(-1, 4)
    assert [each for each in range(-3, 7) if number.accepts(each)] == [-1, 0, 1, 2, 3, 4]
    assert [each for each in (True, 1.0, "1", None) if number.accepts(each)] == []


MOST = 2**31 - 1
MOST_MS = 1_000 * 366 * 86_400_000  # a thousand years
#: The lowest and the highest number of each setting that is a number; `conf/offsets.toml` says what 0 and -1 mean.
NUMBERS = {
    "log": {
        "offsets_partitions": (1, MOST),
        "min_compaction_lag_ms": (0, MOST_MS),
        "delete_retention_ms": (0, MOST_MS),
        "history_hours": (0, 1_000 * 366 * 24),
        "lease_duration_ms": (1_000, MOST),
    },
    "fold": {
        **dict.fromkeys(("trigger_interval_ms", "driver_rows", "upkeep_interval_ms"), (0, MOST)),
        **dict.fromkeys(("publish_within_ms", "publish_large_within_ms", "compact_files"), (1, MOST)),
    },
    "coordinator": {
        **dict.fromkeys(("offsets_retention_minutes", "offsets_retention_check_interval_ms"), (1, MOST)),
        "offset_metadata_max_bytes": (0, 32_767),
        "offsets_commit_required_acks": (-1, 1),
        "offset_commit_value_version": (0, 4),
        "offsets_commit_timeout_ms": (1, MOST),
        "transaction_max_timeout_ms": (1, MOST),
    },
    "zookeeper": dict.fromkeys(("session_timeout_ms", "connection_timeout_ms"), (1, MOST)),
    "topic": {
        **dict.fromkeys(("min_records_per_batch", "max_records_per_batch"), (1, MOST)),
        "min_records_wait_ms": (0, MOST),
        **dict.fromkeys(("watch_interval_ms", "note_interval_ms"), (100, MOST)),
        "open_transaction_warning_ms": (1, MOST_MS),
    },
    "questions": {"max_unfolded_records": (0, MOST)},
    "lag": {
        **dict.fromkeys(("sample_interval_ms", "metrics_max_series"), (0, MOST)),
        "sample_retention_hours": (0, 1_000 * 366 * 24),
        "window_commits": (1, 1_000),
    },
    "spark": {"shuffle_partitions": (1, 100_000)},
}


def test_each_number_has_both_ends_of_its_range() -> None:
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for section in fields(Settings):
        for setting in fields(getattr(Settings(), section.name)):
            if type(setting.default) is int:
                allowed = setting.metadata["allowed"]
                low, high = map(int, allowed.words.removeprefix("a whole number from ").split(" to "))
                found.setdefault(section.name, {})[setting.name] = low, high
                assert [allowed.accepts(each) for each in (low - 1, low, high, high + 1)] == [False, True, True, False]
    assert found == NUMBERS


@pytest.mark.parametrize(
    ("text", "to_log", "to_zookeeper"),
    [
        ("", True, False),
        ("dual_commit_enabled = true", True, True),
        ('offsets_storage = "zookeeper"', False, True),
        ('offsets_storage = "zookeeper"\ndual_commit_enabled = true', True, True),
    ],
)
def test_commits_go_to_the_log_or_to_zookeeper_or_to_both(
    tmp_path: Path, text: str, to_log: bool, to_zookeeper: bool
) -> None:
    settings = load_settings(written(tmp_path, f"[coordinator]\n{text}\n")).coordinator
    assert (settings.commits_to_log, settings.uses_zookeeper) == (to_log, to_zookeeper)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("log = false", "log: false is not allowed; [log] is a section"),
        (f"log = {2**63 - 1}", "log: 9223372036854775807 is not allowed; [log] is a section"),
        (f"log = -{2**63}", "log: a number of more than 64 bits is not allowed; [log] is a section"),
        (f'log = "{"x" * 198}"', f'log: "{"x" * 198}" is not allowed; [log] is a section'),
        (f'log = "{"x" * 199}"', f'log: "{"x" * 199}... is not allowed; [log] is a section'),
        ("a = " + "1" * 5_000, "a number has thousands of digits"),
        ("a = " + "[" * 100_000, "it is nested too deeply"),
        ("log." + "a." * 1_500 + "a = 1", "it is nested too deeply"),
    ],
)
def test_a_large_value_is_refused_and_shown_up_to_a_limit(tmp_path: Path, text: str, reason: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        load_settings(path)
    assert str(refused.value) in {f"{path}: {reason}", f"cannot read the settings file {path}: {reason}"}
