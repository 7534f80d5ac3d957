"""The rule of Kafka for names of topics. Such a name is safe as part of the name of a folder, too."""

from __future__ import annotations

import re

from offsets_pipeline.common.input_text import shown
from offsets_pipeline.errors import InvalidTopic

#: Names of topics, as a regular expression.
TOPIC_NAME = r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}"
_TOPIC_NAME = re.compile(TOPIC_NAME)


def validated_topic(name: str) -> str:
    """Return the name of a topic. Raises InvalidTopic if Kafka does not allow it."""
    if _TOPIC_NAME.fullmatch(name) is None:
        raise InvalidTopic(
            f"{shown(name)} is not a topic name: it has 1 to 249 letters, digits, dots, _ and -, and is not . or .."
        )
    return name
