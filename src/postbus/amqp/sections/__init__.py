"""The sections of a message: found, read one at a time, and built (AMQP 3.2)."""

from postbus.amqp.sections.fields import Header, MessageId, Properties
from postbus.amqp.sections.readers import (
    read_annotations,
    read_application_properties,
    read_data,
    read_delivery_annotations,
    read_footer,
    read_header,
    read_ids,
    read_properties,
    read_value,
)
from postbus.amqp.sections.scanning import Sections, compacted, scan, split_batch
from postbus.amqp.sections.writers import (
    AnnotationLayout,
    encode_amqp_value,
    encode_application_properties,
    encode_data,
    encode_delivery_annotations,
    encode_footer,
    encode_header,
    encode_message_annotations,
    encode_properties,
    encode_sequence,
)

__all__ = [
    "AnnotationLayout",
    "Header",
    "MessageId",
    "Properties",
    "Sections",
    "compacted",
    "encode_amqp_value",
    "encode_application_properties",
    "encode_data",
    "encode_delivery_annotations",
    "encode_footer",
    "encode_header",
    "encode_message_annotations",
    "encode_properties",
    "encode_sequence",
    "read_annotations",
    "read_application_properties",
    "read_data",
    "read_delivery_annotations",
    "read_footer",
    "read_header",
    "read_ids",
    "read_properties",
    "read_value",
    "scan",
    "split_batch",
]
