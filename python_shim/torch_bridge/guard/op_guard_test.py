# SPDX-License-Identifier: Apache-2.0
"""The guard in front of every CUDA operator, over a core that records."""

from python_shim.torch_bridge.testing import bridge as support

DEVICE, BRIDGE = support.load()

# pylint: disable=wrong-import-position
import ctypes
import threading

import pytest
import torch

BRIDGE.call("install_guard")
BRIDGE.call("install")
torch.cuda.init()


@pytest.fixture(autouse=True)
def _clean():
    BRIDGE.evictable()
    BRIDGE.core.recording_clear()
    yield
    BRIDGE.heal()
    assert BRIDGE.open() == 0


def test_guards_more_than_a_thousand_operators():
    assert BRIDGE.library.stratalloc_torch_guarded() > 1000


@pytest.mark.parametrize(
    "name",
    [
        "aten::add.Tensor",
        "aten::mm",
        "aten::copy_",
        "aten::_local_scalar_dense",
        "aten::resize_",
        "aten::set_.source_Tensor",
        "aten::record_stream",
        "aten::_foreach_add_.List",
        "aten::_fused_adamw_",
    ],
)
def test_guards(name):
    assert BRIDGE.guarded(name)


@pytest.mark.parametrize(
    "name", ["aten::view", "aten::as_strided", "aten::empty.memory_format"]
)
def test_leaves_out_what_touches_no_tensor_bytes(name):
    assert not BRIDGE.guarded(name)


def test_passes_through_while_nothing_is_evictable():
    x = torch.ones(4, device="cuda")
    BRIDGE.evictable(False)
    before = BRIDGE.enters()
    assert (x + 1).sum().item() == 8
    assert BRIDGE.enters() == before


def test_reads_are_not_writes_and_in_place_is():
    x = torch.ones(4, device="cuda")
    y = torch.ones(4, device="cuda")
    x.add(y)
    assert BRIDGE.accesses("aten::add.Tensor") == [
        (x.data_ptr(), 16, False),
        (y.data_ptr(), 16, False),
    ]
    x.mul_(y)
    assert BRIDGE.accesses("aten::mul_.Tensor") == [
        (x.data_ptr(), 16, True),
        (y.data_ptr(), 16, False),
    ]


def test_a_view_pins_only_its_own_bytes():
    x = torch.ones(8, 4, device="cuda")
    x[2].add_(1)
    assert BRIDGE.accesses("aten::add_") == [(x.data_ptr() + 32, 16, True)]
    x[:, 1].add_(1)  # 8 elements, 4 apart, from the second on
    assert BRIDGE.accesses("aten::add_") == [
        (x.data_ptr() + 4, (7 * 4 + 1) * 4, True)
    ]


def test_out_argument_pins_its_whole_storage():
    out = torch.empty(100, device="cuda")
    part = out[:4]
    x = torch.ones(4, device="cuda")
    torch.add(x, x, out=part)
    assert (out.data_ptr(), 400, True) in BRIDGE.accesses("aten::add.out")


def test_resize_pins_the_whole_storage():
    x = torch.ones(100, device="cuda")
    y = x[:1]
    y.resize_(1)
    assert BRIDGE.accesses("aten::resize_") == [(x.data_ptr(), 400, True)]


def test_lists_and_lists_of_optionals():
    xs = [torch.ones(4, device="cuda") for _ in range(40)]
    torch._foreach_add_(xs, 1.0)
    assert BRIDGE.accesses("aten::_foreach_add_") == [
        (x.data_ptr(), 16, True) for x in xs
    ]
    x = torch.arange(12.0, device="cuda").reshape(3, 4)
    index = torch.tensor([0, 2], device="cuda")
    x[:, index]
    assert (index.data_ptr(), 16, False) in BRIDGE.accesses("aten::index.Tensor")


def test_running_statistics_count_as_written():
    norm = torch.nn.BatchNorm1d(4).cuda()
    norm(torch.randn(8, 4, device="cuda"))
    written = [a for a, _, w in BRIDGE.accesses("batch_norm") if w]
    assert norm.running_mean.data_ptr() in written
    assert norm.running_var.data_ptr() in written
    assert norm.weight.data_ptr() not in written


def test_copies_in_both_directions():
    x = torch.ones(4, device="cuda")
    x.cpu()
    assert BRIDGE.accesses("aten::copy_") == [(x.data_ptr(), 16, False)]
    x.copy_(torch.zeros(4))
    assert BRIDGE.accesses("aten::copy_") == [(x.data_ptr(), 16, True)]
    assert x.tolist() == [0, 0, 0, 0]


def test_sparse_tensors_pin_their_parts():
    index = torch.tensor([[0, 1], [1, 0]], device="cuda")
    values = torch.ones(2, device="cuda")
    x = torch.sparse_coo_tensor(index, values, (2, 2), check_invariants=True)
    parts = {x._values().data_ptr(), x._indices().data_ptr()}
    x.add_(x)
    assert parts <= {a for a, _, w in BRIDGE.accesses("aten::add_") if w}


def test_looking_does_not_copy_a_copy_on_write_tensor():
    x = torch.ones(1000, device="cuda")
    y = torch._lazy_clone(x)
    (x + y).sum().item()
    assert torch._C._is_cow_tensor(x) and torch._C._is_cow_tensor(y)


def test_record_stream_restores_nothing():
    x = torch.ones(4, device="cuda")
    before = BRIDGE.core.recording_stream_records()
    x.record_stream(torch.cuda.Stream())
    assert BRIDGE.core.recording_stream_records() == before + 1
    assert not BRIDGE.accesses("aten::record_stream")


def test_failure_is_raised_before_the_operator_runs():
    x = torch.ones(4, device="cuda")
    BRIDGE.fail("aten::add_")
    with pytest.raises(RuntimeError, match="layer 'a.b': checksum"):
        x.add_(1)
    BRIDGE.heal()
    assert x.tolist() == [1, 1, 1, 1]


def test_out_of_memory_has_its_own_type():
    x = torch.ones(4, device="cuda")
    BRIDGE.fail("aten::add", BRIDGE.OUT_OF_MEMORY, "CUDA out of memory. Why.")
    BRIDGE.say(" What helps.")
    with pytest.raises(torch.OutOfMemoryError,
                       match="out of memory. Why. What helps."):
        x + 1
    assert BRIDGE.told("aten::add.Tensor") == 1
    BRIDGE.say("")


def test_another_failure_is_told_to_nobody():
    x = torch.ones(4, device="cuda")
    BRIDGE.fail("aten::sub")
    with pytest.raises(RuntimeError, match="checksum"):
        x - 1
    assert BRIDGE.told("aten::sub.Tensor") == 0


def test_failure_of_a_copy_and_of_item():
    x = torch.ones(4, device="cuda")
    BRIDGE.fail("aten::copy_")
    with pytest.raises(RuntimeError, match="checksum"):
        x.cpu()
    BRIDGE.fail("aten::_local_scalar_dense")
    with pytest.raises(RuntimeError, match="checksum"):
        x[0].item()


def test_failure_in_backward_reaches_the_caller():
    layer = torch.nn.Linear(4, 4).cuda()
    x = torch.ones(2, 4, device="cuda")
    loss = layer(x).relu().sum()
    BRIDGE.fail("aten::threshold_backward")
    with pytest.raises(RuntimeError, match="layer 'a.b': checksum"):
        loss.backward()
    assert layer.weight.grad is None


def test_a_kernel_that_throws_is_left():
    x = torch.ones(2, 3, device="cuda")
    with pytest.raises(RuntimeError):
        torch.mm(x, x)
    assert BRIDGE.open() == 0


def test_operators_without_evictable_arguments_enter_too():
    x = torch.ones(4, device="cuda")
    BRIDGE.core.recording_set_evictable(4096, 8192)
    before = BRIDGE.enters()
    x + 1
    assert BRIDGE.enters() > before
    assert not BRIDGE.accesses("aten::add.Tensor")


def test_a_thread_without_anything_is_guarded():
    x = torch.ones(4, device="cuda")
    BRIDGE.fail("aten::sum")
    seen = []

    def work():
        try:
            x.sum()
        except RuntimeError as error:
            seen.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(seen) == 1 and "checksum" in seen[0]


def test_results_equal_the_cpu():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 2)
    )
    x = torch.randn(4, 8)
    expected = model(x)
    expected.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.cuda()
    result = model(x.cuda())
    result.sum().backward()
    assert torch.equal(result.cpu(), expected)
    for parameter, gradient in zip(model.parameters(), gradients):
        assert torch.equal(parameter.grad.cpu(), gradient)


def test_operator_defined_later_is_guarded():
    library = torch.library.Library("bridge_late", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.define("shape_only(int n) -> int")
    library.impl("twice", lambda x: x * 2, "CUDA")
    library.impl("twice", lambda x: x * 3, "CPU")
    assert BRIDGE.guarded("bridge_late::twice")
    assert not BRIDGE.guarded("bridge_late::shape_only")
    x = torch.ones(4, device="cuda")
    assert torch.ops.bridge_late.twice(x).tolist() == [2] * 4
    assert BRIDGE.accesses("bridge_late::twice") == [(x.data_ptr(), 16, False)]
    BRIDGE.fail("bridge_late::twice")
    with pytest.raises(RuntimeError, match="checksum"):
        torch.ops.bridge_late.twice(x)
    # Tensors of the CPU are none of its business.
    assert torch.ops.bridge_late.twice(torch.ones(4)).tolist() == [3] * 4


def _ousted(call):
    BRIDGE.core.recording_oust_mallocs(1)
    with pytest.raises(RuntimeError, match="Others took the room") as raised:
        call()
    return raised.type


@pytest.mark.parametrize("call", [
    lambda x: x + 1,  # typed
    lambda x: torch.topk(x, 2),  # boxed
])
def test_who_runs_an_operator_is_told_of_memory_that_others_took(call):
    x = torch.ones(4, device="cuda")
    assert _ousted(lambda: call(x)) is torch.OutOfMemoryError


def test_inside_an_operator_it_is_no_want_of_memory():
    """A kernel that answered it another way would miss its operands."""
    seen = []
    library = torch.library.Library("bridge_ousted", "FRAGMENT")
    library.define("around(Tensor x) -> Tensor")

    def around(x):
        seen.append(_ousted(lambda: x + 1))
        return x + 2

    library.impl("around", around, "CUDA")
    x = torch.ones(4, device="cuda")
    assert torch.ops.bridge_ousted.around(x).tolist() == [3] * 4
    assert seen == [RuntimeError]


def test_inside_a_call_it_is_no_want_of_memory():
    """The code of a call holds addresses of what is away now."""
    x = torch.ones(4, device="cuda")
    tensors = (ctypes.c_void_p * 1)(x._cdata)
    call, text = ctypes.c_void_p(), ctypes.create_string_buffer(300)
    BRIDGE.evictable()
    lib = BRIDGE.library
    for _ in range(2):
        assert lib.stratalloc_torch_call_enter(
            b"call", tensors, 1, 0, 0, 1, ctypes.byref(call), text, 300) == 0
        assert call.value
        assert _ousted(lambda: x + 1) is RuntimeError
        assert lib.stratalloc_torch_call_leave(call, text, 300) == 1
        assert text.value.startswith(b"CUDA out of memory. Others took")
    # A call that was told nothing has nothing to tell.
    assert lib.stratalloc_torch_call_enter(
        b"call", tensors, 1, 0, 0, 1, ctypes.byref(call), text, 300) == 0
    assert lib.stratalloc_torch_call_leave(call, text, 300) == 0
    assert _ousted(lambda: x + 1) is torch.OutOfMemoryError


def test_replaced_kernel_is_guarded_after_a_rescan():
    x = torch.ones(4, device="cuda")
    library = torch.library.Library("aten", "IMPL")
    library.impl("frac", lambda a: a * 0 + 5, "CUDA")
    assert not BRIDGE.guarded("aten::frac")
    BRIDGE.call("rescan_guard")
    assert BRIDGE.guarded("aten::frac")
    assert torch.frac(x).tolist() == [5] * 4


def test_removed_guard_leaves_the_operators_as_they_were():
    count = BRIDGE.library.stratalloc_torch_guarded()
    x = torch.ones(4, device="cuda")
    BRIDGE.library.stratalloc_torch_remove_guard()
    try:
        assert not BRIDGE.guarded("aten::add.Tensor")
        before = BRIDGE.enters()
        assert (x + 1).tolist() == [2] * 4
        assert BRIDGE.enters() == before
    finally:
        BRIDGE.call("install_guard")
    assert abs(BRIDGE.library.stratalloc_torch_guarded() - count) <= 2
