# SPDX-License-Identifier: Apache-2.0
"""Structures and functions of libstratalloc.so as ctypes sees them.

One class per struct of python_shim/c_api/*.h and one row per function; a change
there is a change here.
"""

import ctypes

from stratalloc._native import device_metrics as _device_metrics


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("message", ctypes.c_char * 2048)]


class Setting(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char_p), ("value", ctypes.c_char_p)]


class Range(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64)]


class Placement(ctypes.Structure):
    """How a block lies (stratalloc_placement); lifetime -1: it is not ours."""

    _fields_ = [("lifetime", ctypes.c_int), ("scope", ctypes.c_uint32),
                ("category", ctypes.c_int), ("held", ctypes.c_int),
                ("capturing", ctypes.c_int), ("stream", ctypes.c_uint64)]


class Pin(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("serial", ctypes.c_uint64),
                ("reason", ctypes.c_int)]


class Refusal(ctypes.Structure):
    """What was refused (stratalloc_refusal); ends when its listener returns."""

    _fields_ = [("device", ctypes.c_int), ("is_operator", ctypes.c_int),
                ("bytes", ctypes.c_uint64), ("stream", ctypes.c_uint64),
                ("lifetime", ctypes.c_int), ("scope", ctypes.c_uint32),
                ("category", ctypes.c_int), ("name", ctypes.c_char_p),
                ("message", ctypes.c_char_p), ("refused", ctypes.c_void_p)]


class Trial(ctypes.Structure):
    """What is done before it is asked for again (stratalloc_trial)."""

    _fields_ = [("more_limit", ctypes.c_uint64), ("more_card", ctypes.c_uint64),
                ("more_room", ctypes.c_uint64),
                ("frees", ctypes.POINTER(ctypes.c_uint64)),
                ("count", ctypes.c_int), ("pools_end", ctypes.c_int),
                ("streams_end", ctypes.c_int), ("graphs_end", ctypes.c_int),
                ("unpinned", ctypes.c_int), ("measure", ctypes.c_int)]


class Tried(ctypes.Structure):
    _fields_ = [("missing", ctypes.c_uint64), ("fits", ctypes.c_uint64),
                ("served", ctypes.c_int)]


REFUSAL_LISTENER = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(Refusal), ctypes.c_void_p, ctypes.c_int)


def declare(lib):
    """Argument and result types of every function that Python calls."""
    error = ctypes.POINTER(Error)
    ranges = ctypes.POINTER(Range)
    pins = ctypes.POINTER(Pin)
    u32, u64, i32 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int
    text = ctypes.c_char_p
    moved = ctypes.POINTER(u64)
    for name, result, arguments in (
        ("configure", i32, (ctypes.POINTER(Setting), i32, error)),
        ("initialized", i32, ()),
        ("version", text, ()),
        ("host_memory", None, (text, ctypes.POINTER(u64), ctypes.POINTER(u64))),
        ("holds", i32, (u64,)),
        ("string_free", None, (ctypes.c_void_p,)),
        ("report_json", ctypes.c_void_p, (i32,)),
        ("device_count", i32, ()),
        ("metrics", i32, (i32, ctypes.POINTER(_device_metrics.Device),
                          ctypes.POINTER(_device_metrics.Scope), i32,
                          ctypes.POINTER(i32), error)),
        ("held_json", ctypes.c_void_p, (i32,)),
        ("fragmentation_json", ctypes.c_void_p, (i32,)),
        ("explain_json", ctypes.c_void_p, (i32, u64, u64)),
        ("sites_json", ctypes.c_void_p, (i32,)),
        ("hear_refusals", None, (ctypes.c_void_p,)),
        ("refusal_json", ctypes.c_void_p, (ctypes.POINTER(Refusal),)),
        ("try", i32, (ctypes.POINTER(Refusal), ctypes.POINTER(Trial), i32,
                      ctypes.POINTER(Tried), error)),
        ("set_telemetry", i32, (text, error)),
        ("flight_recording", u64, ()),
        ("recording_begin", i32, (text, i32, u64, moved, error)),
        ("recording_write", i32, (u64, text, text, i32, i32, error)),
        ("recording_recover", i32, (text, text, i32, error)),
        ("mark", None, (text,)),
        ("check_invariants", i32, (i32, error)),
        ("scope_intern", u32, (text,)),
        ("scope_name", ctypes.c_void_p, (u32,)),
        ("scope_push", None, (u32, i32, i32)),
        ("scope_pop", i32, ()),
        ("limit_scope", i32, (i32, text, u64, error)),
        ("relabel", i32, (ctypes.c_void_p, u64, u32, i32)),
        ("evict", i32, (i32, i32, ranges, i32, moved, error)),
        ("tier_rule", i32, (i32, ranges, i32, i32, i32, i32, error)),
        ("restore", i32, (i32, ranges, i32, moved, error)),
        ("empty_cache", i32, (i32, error)),
        ("residency", i32, (ctypes.c_void_p, u64, ctypes.POINTER(u64), error)),
        ("set_disk_codec", i32, (text, error)),
        ("placement_of", i32, (u64, ctypes.POINTER(Placement), error)),
        ("record_streams_of", i32, (u64, u64, error)),
        ("pin_blocks", i32, (text, i32, ranges, i32, pins, error)),
        ("unpin_blocks", None, (pins, i32, i32)),
        ("is_pinned", i32, (pins,)),
    ):
        function = getattr(lib, "stratalloc_" + name)
        function.restype = result
        function.argtypes = arguments
    return lib
