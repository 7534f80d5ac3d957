"""The group coordinator whose replay a state reproduces."""

from __future__ import annotations

from enum import StrEnum


class CoordinatorSemantics(StrEnum):
    """The coordinator that loads the log.

    MODERN is the coordinator of Kafka 4.x. CLASSIC is the coordinator of brokers up to 3.9; R1, R6, R10c, R12, R14,
    R16, R20 and R21 say where it differs.
    """

    MODERN = "modern"
    CLASSIC = "classic"

    @property
    def is_classic(self) -> bool:
        """Whether this is CLASSIC."""
        return self is CoordinatorSemantics.CLASSIC


#: The default, and the semantics of every owned store: its coordinator behaves as that of Kafka 4.x.
MODERN = CoordinatorSemantics.MODERN

#: The value of the setting with which the broker that is followed decides.
AUTO = "auto"


def of_setting(setting: str) -> CoordinatorSemantics:
    """The semantics of a log without a broker: AUTO is MODERN."""
    return MODERN if setting == AUTO else CoordinatorSemantics(setting)
