# SPDX-License-Identifier: Apache-2.0
"""The guard of operators that are called without boxing.

torch's own CUDA kernels stand behind it here and cannot run: every call is
refused by the core before it reaches one, which has then been told what the
call would touch. What a call gives back is shown by kernels of the test's.
"""

from python_shim.torch_bridge.testing import bridge as support

_, BRIDGE = support.load(operators=False)

# pylint: disable=wrong-import-position
import os

import pytest
import torch

torch.ops.load_library(os.path.abspath(
    "python_shim/torch_bridge/testing/libtyped_kernels.so"))
OURS = torch.ops.typed_kernels
BRIDGE.call("install_guard")
BRIDGE.call("install")
torch.cuda.init()

_REFUSED = "layer 'a.b': checksum"
_ONLY_VIEWS = ("view", "as_strided", "_reshape_alias", "view_as_real",
               "view_as_complex", "unfold")
_UNANNOUNCED = ("running_mean", "running_var")
_RESIZING = ("resize_", "resize_as_", "_resize_output_", "resize_as_sparse_")


@pytest.fixture(autouse=True)
def _refuse():
    BRIDGE.evictable()
    BRIDGE.core.recording_clear()
    BRIDGE.fail("aten::")
    with torch.no_grad():
        yield
    assert BRIDGE.open() == 0


def _tensor():
    """The middle half of a storage: a part and the whole differ."""
    return torch.empty(8, device="cuda")[2:6]


_VALUES = {
    "Tensor": _tensor,
    "Optional[Tensor]": _tensor,
    "List[Tensor]": lambda: [_tensor() for _ in range(20)],
    "List[Optional[Tensor]]": lambda: [_tensor(), None, _tensor()],
    "number": lambda: 1.5,
    "Optional[number]": lambda: 1.5,
    "List[number]": lambda: [1.5] * 20,
    "int": lambda: 1,
    "Optional[int]": lambda: 1,
    "List[int]": lambda: [1, 1, 1],
    "Optional[List[int]]": lambda: [1],
    "bool": lambda: False,
    "Optional[bool]": lambda: False,
    "float": lambda: 0.5,
    "str": lambda: "none",
}


def _tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list):
        return [part for part in value if isinstance(part, torch.Tensor)]
    return []


def _ranges(schema, values):
    """What the call touches, from the schema alone."""
    resizes = schema.name.removeprefix("aten::") in _RESIZING
    ranges = []
    for index, (argument, value) in enumerate(zip(schema.arguments, values)):
        written = argument.name in _UNANNOUNCED or (
            argument.alias_info is not None and argument.alias_info.is_write)
        for tensor in _tensors_of(value):
            if argument.is_out or (resizes and index == 0):
                storage = tensor.untyped_storage()
                ranges.append((storage.data_ptr(), 32, written))
            else:
                ranges.append((tensor.data_ptr(), 16, written))
    return ranges


def _operators():
    """(overload, schema) of what has a CUDA kernel and arguments to make."""
    found = []
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
        space, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if space != "aten" or base in _ONLY_VIEWS:
            continue
        packet = getattr(torch.ops.aten, base)
        call = getattr(packet, overload or "default")
        types = [str(argument.type) for argument in call._schema.arguments]
        if all(kind in _VALUES for kind in types) and any(
                "Tensor" in kind for kind in types):
            found.append(call)
    return found


def test_many_operators_are_called_without_boxing():
    assert BRIDGE.library.stratalloc_torch_guarded_typed() > 650


def test_every_operator_touches_what_its_schema_says():
    operators = _operators()
    assert len(operators) > 1000
    wrong = []
    for call in operators:
        schema = call._schema
        if schema.name in ("aten::record_stream", "aten::set_"):
            continue  # op_guard_test has them
        if schema.name == "aten::clone":
            continue  # enters nothing: its copy_ does (evictable_copy.h)
        values = [_VALUES[str(a.type)]() for a in schema.arguments]
        by_place = [value for value, argument in zip(values, schema.arguments)
                    if not argument.kwarg_only]
        by_name = {argument.name: value
                   for value, argument in zip(values, schema.arguments)
                   if argument.kwarg_only}
        BRIDGE.core.recording_clear()
        try:
            call(*by_place, **by_name)
            said = "it ran"
        except RuntimeError as error:
            said = str(error)
        if _REFUSED not in said:
            wrong.append((str(call), said.splitlines()[0]))
        elif BRIDGE.accesses(schema.name) != _ranges(schema, values):
            wrong.append((str(call), BRIDGE.accesses(schema.name),
                          _ranges(schema, values)))
    assert not wrong, wrong[:5]



_X, _Y, _Z = _tensor(), _tensor(), _tensor()
_MASK = torch.empty(4, dtype=torch.bool, device="cuda")
_INDEX = torch.empty(4, dtype=torch.long, device="cuda")
_XS, _YS, _ZS = ([_tensor() for _ in range(20)] for _ in range(3))


def _range(tensor, written=False):
    return tensor.data_ptr(), 4 * tensor.element_size(), written


# Called from C++ with C++'s types, as a step of a model calls them.
@pytest.mark.parametrize("name, call, touched", [
    ("add.Tensor", lambda: _X + _Y, [_range(_X), _range(_Y)]),
    ("add_.Tensor", lambda: _X.add_(_Y), [_range(_X, True), _range(_Y)]),
    ("fill_.Scalar", lambda: _X.fill_(2), [_range(_X, True)]),
    ("mul.out", lambda: torch.mul(_X, _Y, out=_Z),
     [_range(_X), _range(_Y), (_Z.data_ptr() - 8, 32, True)]),
    ("addmm", lambda: torch.addmm(_X[:2], _Y.view(2, 2), _Z.view(2, 2)),
     [(_X.data_ptr(), 8, False), _range(_Y), _range(_Z)]),
    ("where.self", lambda: torch.where(_MASK, _Y, _Z),
     [_range(_MASK), _range(_Y), _range(_Z)]),
    ("gelu", lambda: torch.nn.functional.gelu(_X), [_range(_X)]),
    ("_softmax", lambda: _X.softmax(0), [_range(_X)]),
    ("sum.dim_IntList", lambda: _X.sum(0), [_range(_X)]),
    ("max.dim", lambda: _X.max(0), [_range(_X)]),
    ("native_layer_norm",
     lambda: torch.nn.functional.layer_norm(_X, (4,), _Y, _Z),
     [_range(_X), _range(_Y), _range(_Z)]),
    ("cat", lambda: torch.cat([_X, _Y, _Z]),
     [_range(_X), _range(_Y), _range(_Z)]),
    ("index.Tensor", lambda: _X[_INDEX], [_range(_X), _range(_INDEX)]),
    ("_foreach_sqrt_", lambda: torch._foreach_sqrt_(_XS),
     [_range(x, True) for x in _XS]),
    ("_foreach_addcmul_.Scalar",
     lambda: torch._foreach_addcmul_(_XS, _YS, _ZS, value=2),
     [_range(x, True) for x in _XS] + [_range(y) for y in _YS + _ZS]),
])
def test_calls_from_cpp_touch_the_same(name, call, touched):
    with pytest.raises(RuntimeError, match=_REFUSED):
        call()
    assert BRIDGE.accesses("aten::" + name) == touched


@pytest.fixture(name="served")
def _served():
    """The core lets every operator pass."""
    BRIDGE.heal()


@pytest.mark.parametrize("evictable", [True, False])
def test_calls_arrive_and_results_return(served, evictable):
    del served
    BRIDGE.evictable(evictable)
    enters = BRIDGE.enters()
    assert OURS.first(_X, _Y).data_ptr() == _X.data_ptr()
    assert OURS.itself(_X, _Y) is _X
    assert [x.data_ptr() for x in OURS.reversed(_XS)] == [
        x.data_ptr() for x in reversed(_XS)]
    assert BRIDGE.enters() - enters == (3 if evictable else 0)


def test_a_kernel_that_throws_is_left(served):
    del served
    with pytest.raises(RuntimeError, match="the kernel throws"):
        OURS.throws(_X)
    assert BRIDGE.open() == 0
    assert BRIDGE.accesses("throws") == [_range(_X)]


@pytest.fixture(name="crowded")
def _crowded(served):
    """Room for two tensors of four numbers."""
    del served
    BRIDGE.room(32)
    yield
    BRIDGE.room(0)


def test_results_of_slices_return_in_order(crowded):
    del crowded
    enters = BRIDGE.enters()
    assert [x.data_ptr() for x in torch._foreach_neg(_XS)] == [
        x.data_ptr() for x in _XS]
    # A result may be as large as an operand: one tensor at a time.
    assert BRIDGE.enters() - enters == 20
    assert BRIDGE.accesses("aten::_foreach_neg") == [_range(_XS[-1])]


def test_numbers_go_with_their_tensors(crowded):
    del crowded
    tensors = [torch.empty(n, device="cuda") for n in (1, 2, 3, 4, 5, 6)]
    enters = BRIDGE.enters()
    torch._foreach_mul_(tensors, [1, 2, 3, 4, 5, 6])
    assert BRIDGE.enters() - enters == 4  # 4 + 8 + 12 bytes, 16, 20, 24
    with pytest.raises(RuntimeError, match="another's number"):
        torch._foreach_mul_(tensors, [1, 2, 3, 4, 6, 5])
    assert BRIDGE.open() == 0


def test_lists_that_fit_are_one_call(served):
    del served
    enters = BRIDGE.enters()
    torch._foreach_neg(_XS)
    assert BRIDGE.enters() - enters == 1


def test_it_goes_and_comes_again(served):
    del served
    typed = BRIDGE.library.stratalloc_torch_guarded_typed()
    BRIDGE.library.stratalloc_torch_remove_guard()
    enters = BRIDGE.enters()
    assert OURS.first(_X, _Y).data_ptr() == _X.data_ptr()
    assert BRIDGE.enters() == enters
    BRIDGE.call("install_guard")
    assert BRIDGE.library.stratalloc_torch_guarded_typed() == typed
    assert OURS.first(_X, _Y).data_ptr() == _X.data_ptr()
    assert BRIDGE.enters() == enters + 1
