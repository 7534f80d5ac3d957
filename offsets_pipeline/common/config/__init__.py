"""Settings: typed, frozen, read from one TOML file.

`conf/offsets.toml` has every setting with its default and a description; a test compares the defaults.
A missing setting has its default. A name may be written with dots, as Kafka writes it: `offsets.retention.minutes`. An
unknown setting, or a wrong type or value, raises ConfigError with the file, the setting, and the allowed values.

`sections` has the settings, section by section, and `allowed_values` the checks of their values.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from offsets_pipeline.common.config.allowed_values import Section, as_toml, known_names
from offsets_pipeline.common.config.sections import (
    CoordinatorSettings,
    FoldSettings,
    KafkaSettings,
    LagSettings,
    LogSettings,
    QuestionSettings,
    S3Settings,
    SparkSettings,
    TopicSettings,
    ZooKeeperSettings,
)
from offsets_pipeline.errors import ConfigError

CONF_ENV = "OFFSETS_CONF"
CONF_PATH = Path("conf/offsets.toml")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, by section: conf/offsets.toml has each with its default and what it is for."""

    log: LogSettings = field(default_factory=LogSettings)
    fold: FoldSettings = field(default_factory=FoldSettings)
    coordinator: CoordinatorSettings = field(default_factory=CoordinatorSettings)
    zookeeper: ZooKeeperSettings = field(default_factory=ZooKeeperSettings)
    topic: TopicSettings = field(default_factory=TopicSettings)
    questions: QuestionSettings = field(default_factory=QuestionSettings)
    lag: LagSettings = field(default_factory=LagSettings)
    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    s3: S3Settings = field(default_factory=S3Settings)
    spark: SparkSettings = field(default_factory=SparkSettings)


_SECTIONS: Mapping[str, type[Section | KafkaSettings]] = {
    each.name: cast("Any", each.default_factory) for each in fields(Settings)
}


def load_settings(path: Path | None = None) -> Settings:
    """Read the settings.

    The file is `path` if given, else the file that the environment variable OFFSETS_CONF names, else
    ./conf/offsets.toml if it exists. Without a file every setting has its default.

        >>> from offsets_pipeline import load_settings
        >>> load_settings().log.offsets_partitions
        50

    Raises:
        ConfigError: the file cannot be read, is not TOML, or has a setting with a wrong name, type or value.
    """
    chosen = _chosen_file(path)
    if chosen is None:
        return Settings()
    try:
        return _from_document(tomllib.loads(chosen.read_text(encoding="utf-8-sig")))
    except ConfigError as error:
        raise ConfigError(f"{chosen}: {error}") from error
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {chosen}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the settings file {chosen}: it is not TOML: {error}") from error
    except ValueError:  # of Python's own limit
        raise ConfigError(f"cannot read the settings file {chosen}: a number has thousands of digits") from None
    except RecursionError:  # also of a name of thousands of parts, which the parser takes
        raise ConfigError(f"cannot read the settings file {chosen}: it is nested too deeply") from None


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
        if section not in _SECTIONS:
            raise ConfigError(f"[{section}] is not a section; {known_names(section, _SECTIONS)}")
        if not isinstance(values, dict):
            raise ConfigError(f"{section}: {as_toml(values)} is not allowed; [{section}] is a section")
        try:
            sections[section] = _SECTIONS[section].of_document(values)
        except ConfigError as error:
            raise ConfigError(f"[{section}] {error}") from error
    return Settings(**cast("Any", sections))
