"""Values of options that refer to a secret: `env:NAME` and `file:PATH`."""

from __future__ import annotations

import os
from pathlib import Path

from offsets_pipeline.errors import ConfigError

#: How a value that refers to a secret starts.
REFERENCES = _ENVIRONMENT, _FILE = "env:", "file:"


def referred_secret(option: str, value: str) -> str | None:
    """Return the secret that a value refers to; None if the value is no reference.

    ``option`` names the option in errors, such as "the Kafka option ssl.key.password". Raises ConfigError for a missing
    environment variable or file.
    """
    if value.startswith(_ENVIRONMENT):
        variable = value.removeprefix(_ENVIRONMENT)
        found = os.environ.get(variable)
        if found is None:
            raise ConfigError(f"cannot read {option}: the environment variable {variable} is not set; set it")
        return found
    if value.startswith(_FILE):
        path = value.removeprefix(_FILE)
        try:
            return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            wrong = "the path holds a NUL character" if "\0" in path else "it is not text"
            reason = error.strerror if isinstance(error, OSError) else wrong
            raise ConfigError(f"cannot read {option} from the file {path}: {reason}") from None
    return None
