"""What clients do on a broker that `follow` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.kafka.live import LiveBroker


def classic_clients(broker: LiveBroker, topic: str, round_: object) -> None:
    """Commit as members of classic groups, which stay, and by hand; reset and delete offsets, and delete a group.

    Creates the topic with three partitions.
    """
    broker.create_topic(topic, 3)
    member = broker.consumer(f"classic-{round_}", [topic])
    member.join(3)
    member.commit({(topic, 0): 1, (topic, 1): 2}, "a note")
    static = broker.consumer(f"static-{round_}", [topic], group_instance_id="one", client_id="static-client")
    static.join(3)
    static.commit({(topic, 2): 3})
    broker.commit(f"simple-{round_}", {(topic, 0): 5, (topic, 1): 5}, "by hand")
    broker.commit(f"simple-{round_}", {(topic, 0): 2})  # a reset
    broker.delete_offsets(f"simple-{round_}", [(topic, 1)])
    broker.commit(f"deleted-{round_}", {(topic, 0): 1})
    broker.delete_group(f"deleted-{round_}")


def leaving_member(broker: LiveBroker, topic: str, group_id: str, group_protocol: str) -> None:
    """Commit as the one member of a group, and leave it."""
    gone = broker.consumer(group_id, [topic], group_protocol=group_protocol)
    gone.join(3)
    gone.commit({(topic, 1): 1})
    gone.close()
