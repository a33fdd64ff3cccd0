# SPDX-License-Identifier: Apache-2.0
"""messages(): protobuf classes of the few fields that we write.

The table is the part of a .proto that is ours, with that format's field
numbers; the classes are made of it when they are asked for, so nothing is
generated and nothing has to fit the installed protobuf's version.
"""

import functools

from stratalloc.telemetry.errors import MissingPackageError

# package -> {message: {field: (number, type)}}; a type with [] is repeated.
TABLES = {
    "perfetto": {
        "Trace": {"packet": (1, "TracePacket[]")},
        "TracePacket": {"timestamp": (8, "uint64"),
                        "trusted_packet_sequence_id": (10, "uint32"),
                        "track_event": (11, "TrackEvent"),
                        "sequence_flags": (13, "uint32"),
                        "track_descriptor": (60, "TrackDescriptor")},
        "TrackDescriptor": {"uuid": (1, "uint64"), "name": (2, "string"),
                            "process": (3, "ProcessDescriptor"),
                            "thread": (4, "ThreadDescriptor"),
                            "parent_uuid": (5, "uint64"),
                            "counter": (8, "CounterDescriptor")},
        "ProcessDescriptor": {"pid": (1, "int32"),
                              "process_name": (6, "string")},
        "ThreadDescriptor": {"pid": (1, "int32"), "tid": (2, "int32"),
                             "thread_name": (5, "string")},
        "CounterDescriptor": {"unit": (3, "int32")},
        "DebugAnnotation": {"int_value": (4, "int64"),
                            "string_value": (6, "string"),
                            "name": (10, "string")},
        "TrackEvent": {"debug_annotations": (4, "DebugAnnotation[]"),
                       "type": (9, "int32"), "track_uuid": (11, "uint64"),
                       "categories": (22, "string[]"), "name": (23, "string"),
                       "counter_value": (30, "int64"),
                       "flow_ids": (47, "fixed64[]")}},
    "pprof": {
        "Profile": {"sample_type": (1, "ValueType[]"),
                    "sample": (2, "Sample[]"), "mapping": (3, "Mapping[]"),
                    "location": (4, "Location[]"),
                    "function": (5, "Function[]"),
                    "string_table": (6, "string[]"),
                    "time_nanos": (9, "int64"), "duration_nanos": (10, "int64"),
                    "comment": (13, "int64[]"),
                    "default_sample_type": (14, "int64")},
        "ValueType": {"type": (1, "int64"), "unit": (2, "int64")},
        "Sample": {"location_id": (1, "uint64[]"), "value": (2, "int64[]"),
                   "label": (3, "Label[]")},
        "Label": {"key": (1, "int64"), "str": (2, "int64"),
                  "num": (3, "int64"), "num_unit": (4, "int64")},
        "Mapping": {"id": (1, "uint64"), "filename": (5, "int64"),
                    "has_functions": (7, "bool"), "has_filenames": (8, "bool"),
                    "has_line_numbers": (9, "bool")},
        "Location": {"id": (1, "uint64"), "mapping_id": (2, "uint64"),
                     "line": (4, "Line[]")},
        "Line": {"function_id": (1, "uint64"), "line": (2, "int64")},
        "Function": {"id": (1, "uint64"), "name": (2, "int64"),
                     "system_name": (3, "int64"), "filename": (4, "int64")}}}


@functools.cache
def messages(package):
    """message -> class.

    Raises:
      MissingPackageError: protobuf is not installed.
    """
    try:
        from google.protobuf import (descriptor_pb2, descriptor_pool,
                                     message_factory)
    except ImportError as error:
        raise MissingPackageError(package, "protobuf", error) from None
    proto = descriptor_pb2.FileDescriptorProto(
        name=f"stratalloc/{package}.proto", package=f"stratalloc.{package}",
        syntax="proto2" if package == "perfetto" else "proto3")
    for message, fields in TABLES[package].items():
        made = proto.message_type.add(name=message)
        for field, (number, kind) in fields.items():
            _add_field(made, package, field, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    return {message: message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"stratalloc.{package}.{message}"))
        for message in TABLES[package]}


def _add_field(made, package, field, number, kind):
    repeated, kind = kind.endswith("[]"), kind.removesuffix("[]")
    added = made.field.add(
        name=field, number=number,
        label=3 if repeated else 1)  # LABEL_REPEATED, LABEL_OPTIONAL
    if kind in TABLES[package]:
        added.type = added.TYPE_MESSAGE
        added.type_name = f".stratalloc.{package}.{kind}"
    else:
        added.type = getattr(added, f"TYPE_{kind.upper()}")
