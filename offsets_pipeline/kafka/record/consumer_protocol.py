"""The consumer protocol that classic groups embed in their metadata: subscription and assignment, versions 0-3.

Records of type 2 store the bytes that members send. Only protocol type "consumer" uses this layout, and even then a
client may send other bytes. So bytes that do not decode give None and never make the record corrupt. The decoded
views are for reading only: the bytes stay in the record.
"""

from offsets_pipeline.kafka.record.corrupt import CorruptRecord
from offsets_pipeline.kafka.record.decode import DecodedValue
from offsets_pipeline.kafka.record.schema import ArrayOf, Field, Schema, Sized, StructOf, serde_for
from offsets_pipeline.kafka.record.wire import INT16, INT32, Reader

CONSUMER_PROTOCOL_TYPE = "consumer"
MAX_VERSION = 3

_TOPIC_PARTITIONS = StructOf((Field("topic", Sized.STRING), Field("partitions", ArrayOf(INT32))))

SUBSCRIPTION = Schema(
    "ConsumerProtocolSubscription",
    (
        Field("topics", ArrayOf(Sized.STRING)),
        Field("user_data", Sized.BYTES, nullable=True),
        Field("owned_partitions", ArrayOf(_TOPIC_PARTITIONS), since=1),
        Field("generation_id", INT32, since=2),
        Field("rack_id", Sized.STRING, since=3, nullable=True),
    ),
    max_version=MAX_VERSION,
)
ASSIGNMENT = Schema(
    "ConsumerProtocolAssignment",
    (
        Field("assigned_partitions", ArrayOf(_TOPIC_PARTITIONS)),
        Field("user_data", Sized.BYTES, nullable=True),
    ),
    max_version=MAX_VERSION,
)


def decode_subscription(protocol_type: str | None, blob: bytes) -> DecodedValue | None:
    """Decode a member's subscription: topics, user_data, owned_partitions, generation_id, rack_id.

    Only topics and user_data, the fields of version 0, if others do not decode: a coordinator reads no others (R18).
    Returns None for another protocol type, or for bytes that do not decode.
    """
    found = _decode(SUBSCRIPTION, protocol_type, blob)
    return _decode(SUBSCRIPTION, protocol_type, blob, layout=0) if found is None else found


def decode_assignment(protocol_type: str | None, blob: bytes) -> DecodedValue | None:
    """Decode a member's assignment: assigned_partitions (topic, partitions), user_data.

    Returns None for another protocol type, or for bytes that do not decode.
    """
    return _decode(ASSIGNMENT, protocol_type, blob)


# int16 version, fields; a version above the highest known is read as the highest, as brokers and clients do
def _decode(
    schema: Schema, protocol_type: str | None, blob: bytes, *, layout: int | None = None
) -> DecodedValue | None:
    """Decode by the version that the bytes name, or by the fields of another one (``layout``)."""
    if protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    reader = Reader(blob)
    try:
        version = INT16.read(reader, schema.name)
        layout = min(version, MAX_VERSION) if layout is None else layout
        if layout < 0:
            return None
        fields = serde_for(schema, layout).read(reader, schema.name)
    except CorruptRecord:
        return None
    return DecodedValue(version, fields, blob[reader.position :])
