# SPDX-License-Identifier: Apache-2.0
"""An accountant of bytes by device: `memlord.MemLord`. Its page has no fences:
code stands as bare lines."""

from tests.system.documents.block import Block
from tests.system.documents.block import Document
from tests.system.documents.block import Group

_PRELUDE = """
import gc
import inspect

import torch
import memlord
from memlord import MemLord

BYTES = 1024 * 1024 * 4
patched = ("to", "clone", "cuda")
were = {name: getattr(torch.Tensor, name) for name in patched}
modules_to = torch.nn.Module.to
synchronize = torch.cuda.synchronize


def nothing_is_patched():
    assert all(getattr(torch.Tensor, name) is were[name] for name in patched)
    assert torch.nn.Module.to is modules_to
    assert torch.cuda.synchronize is synchronize


def signature_of(function, *parameters):
    found = inspect.signature(function).parameters
    names = [name for name in found if name != "self"]
    assert names[:len(parameters)] == list(parameters), names
    return found
"""

_CLONE = Block(
    lines=(60, 61), sha256="e92048b3b73932d8", kind="shell",
    made_of="installs a clone of another project; here the module is part "
    "of stratalloc")

_QUICK_START = Block(
    lines=(65, 109), sha256="0d0c742ac7298050", epilogue="""
gc.collect()
nothing_is_patched()
assert mem.allocated() == mem.allocated(None)
assert mem.allocated()[0] == 0, mem.allocated()
assert mem.freed(torch.device("cuda", 0))[0] == BYTES
assert mem.freed(torch.device("cuda", 1))[0] == BYTES
assert printed.count("\\n") == 5
""")

_FORMAT = Block(
    lines=(121, 130), sha256="2a007412fe2c88a6", kind="shape",
    made_of="`...` and alternatives with | say a shape: each of them is "
    "given, and what is none is refused", epilogue="""
for metric in ("allocated", "freed", "max"):
    for threshold in ({"bytes": 1 << 30}, {"percent": 50.0},
                      {"bytes": 1 << 30, "percent": 50.0}):
        mem.set_auto_gc_strategy(
            {(0, 101): {"metric": metric, "threshold": threshold}})
for bad in ({(0, 50): {"metric": "used", "threshold": {"bytes": 1}}},
            {(0, 50): {"metric": "max", "threshold": {}}},
            {50: {"metric": "max", "threshold": {"bytes": 1}}}):
    try:
        mem.set_auto_gc_strategy(bad)
    except ValueError:
        continue
    raise AssertionError(f"{bad} was taken")
""")

_BANDS = Block(
    lines=(134, 139), sha256="a1a26bfd54eb0cab", epilogue="""
x = torch.empty((1024, 1024), device="cuda:0")
mem.allocate(x)
assert mem.allocated(torch.device("cuda", 0))[0] == BYTES
mem.free(x)
assert mem.allocated(torch.device("cuda", 0))[0] == 0
""")

_ONE_BAND = Block(
    lines=(149, 152), sha256="71c23e9a2f19e34a",
    replaced=(("(legacy_like)", "(strategy)"),),
    made_of="`legacy_like` is nowhere defined; what is defined above it is "
    "meant", epilogue="""
mem.allocate(x)
assert mem.allocated(torch.device("cuda", 0))[0] == BYTES
mem.free(x)
x = None
""")

_FINALIZERS = Block(
    lines=(160, 163), sha256="25ed9d73f88dfa3c", prelude="mem = MemLord({})",
    epilogue="""
t = torch.empty((1024, 1024), device="cuda:0")
a = t
b = a
del t, a
assert mem.freed(torch.device("cuda"))[0] == 0
del b
gc.collect()
assert mem.freed(torch.device("cuda"))[0] == BYTES
del mem
gc.collect()
nothing_is_patched()
""", made_of="as printed, the handle is thrown away: the originals are back "
    "when the tracker goes")

_MOVES = Block(
    lines=(178, 184), sha256="8ba32cf45546a919", prelude="mem = MemLord({})",
    epilogue="nothing_is_patched()")

_SITES = Block(
    lines=(190, 191), sha256="b1c02ba36a85f0dd", epilogue="""
x = torch.empty((1024, 1024), device="cuda:0")
mem.allocate(x)
mem.free(x)
assert MemLord({}, track_callsite=True).top_alloc_site() is None
""")

_TOP = Block(
    lines=(195, 196), sha256="a406f4c007865cff", epilogue="""
device, line, size = mem.top_alloc_site()
assert device == torch.device("cuda", 0) and size == BYTES
assert line.rpartition(":")[2].isdigit()
assert mem.top_free_site(torch.device("cuda"))[2] == BYTES
mem.set_callsite_tracking(False)
""")


def _signature(number, sha256, epilogue):
    return Block(
        lines=(number, number), sha256=sha256, kind="signature",
        made_of="a signature with its result, which no call has; its "
        "parameters are compared", epilogue=epilogue)


_API = (
    _signature(206, "626c6252231e8fa0", """
found = signature_of(MemLord, "auto_gc_strategy", "track_callsite")
assert found["auto_gc_strategy"].default is None
assert found["track_callsite"].default is False
assert found["track_callsite"].kind is inspect.Parameter.KEYWORD_ONLY
"""),
    _signature(210, "846ac91214640d68", """
signature_of(MemLord.set_auto_gc_strategy, "strategy")
assert mem.set_auto_gc_strategy({}) is None
"""),
    _signature(214, "7552740c6731f51f", """
signature_of(MemLord.set_callsite_tracking, "enabled")
assert mem.set_callsite_tracking(False) is None
"""),
    _signature(218, "f7d297c5dff1d883", """
mem = MemLord({})
pair = torch.empty(256, device="cuda:0"), torch.nn.Linear(4, 4)
assert mem.allocate(pair) is None
assert mem.allocated()[0] == 1024 + 80
"""),
    _signature(222, "1c357a7c57cfbcb2", """
assert mem.free(pair) is None
assert mem.allocated()[0] == 0 and mem.freed()[0] == 1024 + 80
"""),
    _signature(226, "855b19a4d8ec073b", """
for device in (None, torch.device("cuda"), torch.device("cuda", 1)):
    size, text = mem.allocated(device)
    assert size == 0 and isinstance(text, str)
"""),
    _signature(236, "6329128e60146962", """
sizes = [mem.freed(device)[0] for device in (
    None, torch.device("cuda"), torch.device("cuda", 1))]
assert sizes == [1024 + 80, 1024, 0], sizes
"""),
    _signature(240, "16f3b08076d4b441", """
assert mem.top_alloc_site(None) is None is mem.top_free_site(None)
"""),
    _signature(244, "0c4202dad7b966cf", """
hooks = mem.hook_into_torch()
assert type(hooks).__name__ == "TorchMoveHooks"
hooks.disable()
nothing_is_patched()
"""),
    _signature(248, "e37cf6628f9a2a08", """
found = signature_of(MemLord.hook_into_python, "enable_factory_wrappers",
                     "enable_deep_autowrap")
assert all(found[name].default is True and
           found[name].kind is inspect.Parameter.KEYWORD_ONLY
           for name in list(found)[-2:])
hooks = mem.hook_into_python()
assert type(hooks).__name__ == "SnakeHooks"
hooks.disable()
nothing_is_patched()
"""),
    _signature(252, "20d1a6f969bd6423", """
assert mem.reset() is None
assert mem.allocated()[0] == mem.freed()[0] == 0
"""),
)

_PATTERN_A = Block(
    lines=(260, 264), sha256="3751354f6005f2ec", epilogue="""
gc.collect()
assert mem.freed(torch.device("cuda"))[0] == 4 * 1000 * 1000
del mem
gc.collect()
nothing_is_patched()
""", made_of="as printed, the handle is thrown away: the originals are back "
    "when the tracker goes")

_PATTERN_B = Block(
    lines=(270, 274), sha256="0652c7142d30b994", epilogue="""
assert mem.freed(torch.device("cpu"))[0] == 4 * 10_000 * 10_000
assert mem.allocated()[0] == 0
x = None
""")

_PATTERN_C = Block(
    lines=(278, 283), sha256="31d690581e619d81", epilogue="""
x = torch.empty((1024, 1024), device="cuda:1")
mem.allocate(x)
assert mem.allocated(torch.device("cuda", 1))[0] == BYTES
mem.free(x)
""")

_LOGGING = Block(
    lines=(289, 289), sha256="854ce47c97273d60", kind="shell",
    made_of="a script of the reader's; the lines that DEBUG=1 brings are "
    "tested beside the module")

DOCUMENT = Document(
    name="memlord",
    file="004_a3e4509705e6d24c.txt",
    title="MemLord",
    format="plain",
    prelude=_PRELUDE,
    groups={"": Group("64MiB", devices=2, enabled_by="import")},
    blocks=(_CLONE, _QUICK_START, _FORMAT, _BANDS, _ONE_BAND, _FINALIZERS,
            _MOVES, _SITES, _TOP, *_API, _PATTERN_A, _PATTERN_B, _PATTERN_C,
            _LOGGING),
)
