# SPDX-License-Identifier: Apache-2.0
"""List operators in slices, over a core that says how much room there is.

Every kernel here is the simulated device's, which computes element by element
with the CPU's: that a sliced call equals the whole one bit for bit proves the
bookkeeping (what is cut, what stays whole, the order of results), and says
nothing about the last bits of a GPU's own kernels.
"""

from python_shim.torch_bridge.testing import bridge as support

DEVICE, BRIDGE = support.load()

# pylint: disable=wrong-import-position
import pytest
import torch

BRIDGE.call("install_guard")
BRIDGE.call("install")
torch.cuda.init()

_FAMILIES = ("_foreach_", "_fused_",
             "_amp_foreach_non_finite_check_and_unscale_")
# The others that take lists of tensors. An element of theirs is not computed
# from the same element of the other lists alone, or all are needed for one
# result: never in slices. One that is in neither place is new in this minor:
# read what it does, and put it here or see that it is in the families.
_WHOLE = {
    "_cudnn_rnn", "_cudnn_rnn_backward", "_cudnn_rnn_flatten_weight",
    "miopen_rnn", "miopen_rnn_backward",  # weights of one network
    "rnn_tanh", "rnn_relu", "lstm", "gru",  # kernels of the simulated device's
    "_chunk_cat",  # one result
    "cat",  # one result, joined one by one when the whole is refused
    "index", "_index_put_impl_",  # one index per dimension
    "_padded_dense_to_jagged_forward", "_jagged_to_padded_dense_forward",
    "_scaled_mm_v2", "_scaled_grouped_mm_v2",  # scales of one product
    "split_with_sizes_copy",  # the parts of one tensor
}
_MINOR = int(torch.__version__.split(".")[1])
if _MINOR >= 15:
    _WHOLE |= {"_scaled_addmm", "_scaled_addmm_"}  # scales of one product
# Of the families, in each minor.
_COUNTS = {11: 153, 12: 154, 13: 155, 14: 155, 15: 155}
_LENGTHS = (3, 1, 8, 2, 5, 8, 4)
_ROOM = 64  # bytes: two or three elements of one list


@pytest.fixture(autouse=True)
def _clean():
    BRIDGE.evictable()
    BRIDGE.core.recording_clear()
    yield
    BRIDGE.room(0)
    BRIDGE.heal()
    assert BRIDGE.open() == 0


def _list_operators():
    """Overloads with a CUDA kernel and an argument that is a list of tensors."""
    found = []
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
        space, _, rest = name.partition("::")
        if space != "aten":
            continue
        base, _, overload = rest.partition(".")
        call = getattr(getattr(torch.ops.aten, base), overload or "default")
        if any("Tensor]" in str(argument.type).replace("Optional[Tensor]",
                                                       "Tensor")
               and "List" in str(argument.type)
               for argument in call._schema.arguments):
            found.append(call)
    return sorted(found, key=str)


def _in_families(call):
    return call._schema.name.removeprefix("aten::").startswith(_FAMILIES)


_SLICED = [call for call in _list_operators() if _in_families(call)]


def _filled(seed):
    """Tensors of several lengths; no number is 0, none beyond 1."""
    generator = torch.Generator().manual_seed(seed)
    return [(torch.rand(n, generator=generator) * 0.9 + 0.05).cuda()
            for n in _LENGTHS]


def _value(call, argument, seed, amsgrad):
    """Something to call it with; lists hold another thing in every place."""
    kind, name = str(argument.type), argument.name
    if kind == "List[Tensor]":
        if name == "state_steps":
            return [torch.tensor(float(i + 1), device="cuda")
                    for i in range(len(_LENGTHS))]
        if name == "max_exp_avg_sqs" and not amsgrad:
            return []
        filled = _filled(seed)
        if call._schema.name == "aten::_foreach_mm":  # of matrices
            return [x.view(-1, 1) if name == "self" else x.view(1, -1)
                    for x in filled]
        return filled
    if kind == "List[number]":
        return [0.5 + i for i in range(len(_LENGTHS))]
    if kind == "Tensor":
        if name == "scalars":
            return torch.arange(1.0, len(_LENGTHS) + 1)
        if name == "found_inf":
            return torch.zeros(1, device="cuda")
        return torch.tensor(0.25, device="cuda")
    if kind == "Optional[Tensor]":
        value = {"grad_scale": 2.0, "found_inf": 0.0}[name]
        return torch.tensor(value, device="cuda")
    if kind == "bool":
        return amsgrad and name == "amsgrad"
    if kind == "Optional[int]":
        return None
    assert kind in ("number", "float", "int"), (str(call), kind)
    return 0.5


def _call(call, amsgrad):
    """What it returns and what it did to its arguments."""
    arguments = call._schema.arguments
    values = [_value(call, argument, seed, amsgrad)
              for seed, argument in enumerate(arguments)]
    by_place = [value for value, argument in zip(values, arguments)
                if not argument.kwarg_only]
    by_name = {argument.name: value
               for value, argument in zip(values, arguments)
               if argument.kwarg_only}
    result = call(*by_place, **by_name)
    after = [value for value in values if not isinstance(value, (bool, float))]
    return _flat([result, after])


def _flat(value):
    if isinstance(value, torch.Tensor):
        return [value.cpu()]
    if isinstance(value, (list, tuple)):
        return [part for element in value for part in _flat(element)]
    return []


def test_every_list_operator_is_known():
    names = {call._schema.name.removeprefix("aten::")
             for call in _list_operators() if not _in_families(call)}
    assert names == _WHOLE
    assert len(_SLICED) == _COUNTS[_MINOR]


@pytest.mark.parametrize("call", _SLICED, ids=str)
def test_slices_equal_the_whole(call):
    for amsgrad in (False, True):
        whole = _call(call, amsgrad)
        BRIDGE.room(_ROOM)
        name = call._schema.name + ("." + call._schema.overload_name
                                    if call._schema.overload_name else "")
        BRIDGE.core.recording_clear()
        sliced = _call(call, amsgrad)
        last = BRIDGE.accesses(name)
        BRIDGE.room(0)
        assert len(whole) == len(sliced)
        for one, other in zip(whole, sliced):
            assert one.dtype == other.dtype and torch.equal(one, other)
        # The last slice had none but the last of these.
        lists = sum(str(a.type) == "List[Tensor]"
                    for a in call._schema.arguments)
        assert 0 < len(last) < lists * len(_LENGTHS)
        if not any(a.name == "amsgrad" for a in call._schema.arguments):
            break


def test_cat_runs_whole_until_it_is_refused():
    xs = _filled(0)
    BRIDGE.room(_ROOM)
    whole = torch.cat([x.cpu() for x in xs])
    BRIDGE.core.recording_clear()
    assert torch.equal(torch.cat(xs).cpu(), whole)
    assert len(BRIDGE.accesses("aten::cat")) == len(xs)


def test_what_results_take_is_learned():
    """A norm is 4 bytes, not the 16 of its tensor."""
    xs = [torch.ones(4, device="cuda") for _ in range(8)]
    BRIDGE.room(40)
    before = BRIDGE.enters()
    norms = torch._foreach_norm(xs)
    assert BRIDGE.enters() - before == 5  # 1, 2, 2, 2 and 1 of them
    assert [norm.item() for norm in norms] == [2] * 8


def test_out_variants_call_what_is_sliced():
    xs, out = _filled(0), [torch.empty_like(x) for x in _filled(0)]
    BRIDGE.room(_ROOM)
    torch.ops.aten._foreach_add.Scalar_out(xs, 1.0, out=out)
    for x, y in zip(xs, out):
        assert torch.equal(y.cpu(), x.cpu() + 1)
    assert len(BRIDGE.accesses("aten::_foreach_add.Scalar")) < len(xs)


def test_gradients_pass():
    def gradients():
        xs = [x.requires_grad_() for x in _filled(0)]
        ys = torch._foreach_mul(torch._foreach_exp(xs), 2.0)
        torch.stack([y.sum() for y in ys]).sum().backward()
        return [x.grad.cpu() for x in xs]

    whole = gradients()
    BRIDGE.room(_ROOM)
    assert all(map(torch.equal, whole, gradients()))


def test_a_slice_that_is_refused_is_halved():
    xs = [torch.ones(4, device="cuda") for _ in range(8)]
    BRIDGE.room(64, most=16)
    before = BRIDGE.enters()
    torch._foreach_add_(xs, 1.0)
    assert BRIDGE.enters() - before == 8
    assert BRIDGE.told("aten::_foreach_add_.Scalar") == 0, "nobody was refused"
    BRIDGE.room(0)
    assert all(x.tolist() == [2] * 4 for x in xs)


def test_one_element_that_is_refused_says_so():
    xs = [torch.ones(n, device="cuda") for n in (4, 4, 8, 4)]
    BRIDGE.room(32, most=16)
    BRIDGE.say("Why not.")
    with pytest.raises(torch.OutOfMemoryError,
                       match=r"CUDA out of memory\. [^\n]*[^.\n]\.?\n  Why not\.\n"
                       r"  stratalloc runs the lists of [^\n]*_foreach_add_\."
                       r"Scalar in slices; element 2 of 4 is a slice by itself"):
        torch._foreach_add_(xs, 1.0)
    BRIDGE.say("")
    assert BRIDGE.told("aten::_foreach_add_.Scalar") == 1
    BRIDGE.room(0)
    # What ran, ran once.
    assert [x[0].item() for x in xs] == [2, 2, 1, 1]


def test_an_element_that_cannot_fit_is_refused_before_anything_runs():
    xs = [torch.ones(n, device="cuda") for n in (4, 4, 8, 4)]
    BRIDGE.room(24, most=16)
    with pytest.raises(torch.OutOfMemoryError,
                       match=r"(?s)element 2 of 4 is a slice by itself"):
        torch._foreach_add_(xs, 1.0)
    assert BRIDGE.told("aten::_foreach_add_.Scalar") == 1
    assert BRIDGE.open() == 0
    # What other threads make room for is not refused.
    BRIDGE.room(24, most=32)
    torch._foreach_add_(xs, 1.0)
    BRIDGE.room(0)
    assert [x[0].item() for x in xs] == [2, 2, 2, 2]


def test_another_error_is_no_reason_to_halve():
    xs = [torch.ones(4, device="cuda") for _ in range(4)]
    BRIDGE.room(32)
    BRIDGE.fail("_foreach_add_")
    with pytest.raises(RuntimeError, match="layer 'a.b': checksum") as raised:
        torch._foreach_add_(xs, 1.0)
    assert "slice" not in str(raised.value)
    BRIDGE.heal()
    assert all(x.tolist() == [1] * 4 for x in xs)


def test_a_kernel_that_throws_in_the_middle_is_left():
    xs = [torch.ones(4, device="cuda") for _ in range(4)]
    ys = [torch.ones(n, device="cuda") for n in (4, 4, 3, 4)]
    BRIDGE.room(32)
    with pytest.raises(RuntimeError, match="size of tensor"):
        torch._foreach_add_(xs, ys)
    assert BRIDGE.open() == 0
    BRIDGE.room(0)
    assert [x[0].item() for x in xs] == [2, 2, 1, 1]


def test_lists_of_different_lengths_are_the_kernels_to_refuse():
    xs = [torch.ones(4, device="cuda") for _ in range(4)]
    BRIDGE.room(32)
    with pytest.raises(RuntimeError, match="must have the same number"):
        torch._foreach_add_(xs, xs[:3])


def test_without_tiering_nothing_is_asked():
    xs = [torch.ones(4, device="cuda") for _ in range(4)]
    BRIDGE.room(16)
    BRIDGE.evictable(False)
    before = BRIDGE.enters()
    torch._foreach_add_(xs, 1.0)
    assert BRIDGE.enters() == before


def _x(*shape, dtype=torch.float32):
    numbers = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    return (numbers * 0.37 - 1).to(dtype)


_JOINED = {
    "first": lambda: torch.cat([_x(3, 4), _x(1, 4), _x(2, 4)]),
    "last": lambda: torch.cat([_x(4, 1), _x(4, 3)], dim=-1),
    "middle": lambda: torch.cat([_x(2, 3, 4), _x(2, 1, 4)], 1),
    "same": lambda: torch.cat([_x(5)] * 4),
    "types": lambda: torch.cat([_x(4), _x(4, dtype=torch.int32),
                                _x(4, dtype=torch.bfloat16)]),
    "integers": lambda: torch.cat([_x(4, dtype=torch.int8),
                                   _x(4, dtype=torch.int64)]),
    "complex": lambda: torch.cat([_x(4, dtype=torch.complex64), _x(4)]),
    "conjugate": lambda: torch.cat([_x(4, dtype=torch.complex64).conj(),
                                    _x(4, dtype=torch.complex64)]),
    "bool": lambda: torch.cat([_x(4) > 0, _x(3) < 0]),
    "strided": lambda: torch.cat([_x(4, 6)[:, ::2], _x(3, 4).t()]),
    "channels_last": lambda: torch.cat(
        [_x(2, n, 4, 4).to(memory_format=torch.channels_last)
         for n in (3, 2)], 1),
    "expanded": lambda: torch.cat([_x(1, 4).expand(3, 4), _x(2, 4)]),
    "empty": lambda: torch.cat([_x(4, 2), _x(0, 2), _x(4, 2)]),
    "nothing": lambda: torch.cat([torch.empty(0), _x(4, 2), torch.empty(0),
                                  _x(3, 2)], 0),
    "nothing_one": lambda: torch.cat([torch.empty(0), _x(4), _x(9)]),
    "stack": lambda: torch.stack([_x(4)] * 5, dim=1),
    "numbers": lambda: torch.stack([_x(1)[0]] * 20),
    "hstack": lambda: torch.hstack([_x(4, 2), _x(4, 3)]),
}


_OUTS = {
    "right": lambda: torch.empty(7, 4),
    "empty": lambda: torch.empty(0),
    "larger": lambda: torch.empty(9, 9),
    "transposed": lambda: torch.empty(4, 7).t(),
    "strided": lambda: torch.zeros(7, 8)[:, ::2],
    "other_strided": lambda: torch.zeros(4, 8)[:, ::2],
    "double": lambda: torch.empty(7, 4, dtype=torch.float64),
    "half": lambda: torch.empty(7, 4, dtype=torch.float16),
    "channels_last": lambda: torch.empty(0),
}


def _refuse_cat(name="aten::cat"):
    BRIDGE.room(_ROOM)
    BRIDGE.fail(name, BRIDGE.OUT_OF_MEMORY, "CUDA out of memory.")


@pytest.mark.parametrize("name", _JOINED)
def test_cat_that_is_refused_is_joined_one_by_one(name):
    with torch.device("cuda"):
        whole = _JOINED[name]()
        _refuse_cat()
        joined = _JOINED[name]()
    assert BRIDGE.told("aten::cat") == 0, "it ran otherwise"
    BRIDGE.room(0)
    assert joined.dtype == whole.dtype and joined.stride() == whole.stride()
    assert torch.equal(joined.cpu(), whole.cpu())
    assert joined._is_view() == whole._is_view()


@pytest.mark.filterwarnings("ignore:An output with one or more elements")
@pytest.mark.parametrize("name", _OUTS)
def test_cat_into_a_tensor_is_joined_there(name):
    with torch.device("cuda"):
        xs = [_x(3, 4), _x(4, 4, dtype=torch.bfloat16)]
        if name == "channels_last":
            xs = [x.reshape(-1, 2, 1, 2).to(memory_format=torch.channels_last)
                  for x in xs]
        whole, there = _OUTS[name](), _OUTS[name]()
        torch.cat(xs, out=whole)
        _refuse_cat("aten::cat.out")
        joined = torch.cat(xs, out=there)
    BRIDGE.room(0)
    assert joined is there and joined.dtype == whole.dtype
    assert joined.shape == whole.shape and joined.stride() == whole.stride()
    assert torch.equal(joined.cpu(), whole.cpu())
    if joined._is_view():
        assert torch.equal(joined._base.cpu(), whole._base.cpu())


@pytest.mark.parametrize("case", ["overlap", "type", "expanded", "shape"])
def test_a_joined_cat_into_a_tensor_refuses_what_cat_does(case):
    def refusal():
        with torch.device("cuda"):
            xs, out = [_x(3, 4), _x(4, 4)], torch.empty(7, 4)
            if case == "overlap":
                xs[0] = out[:3]
            elif case == "type":
                out = torch.empty(7, 4, dtype=torch.int32)
            elif case == "expanded":
                out = torch.empty(1, 4).expand(7, 4)
            else:
                xs[0] = _x(3, 5)
            with pytest.raises((RuntimeError, TypeError)) as raised:
                torch.cat(xs, out=out)
        return type(raised.value), str(raised.value)

    whole = refusal()
    _refuse_cat("aten::cat.out")
    kind, text = refusal()
    BRIDGE.room(0)
    if case == "overlap":
        assert kind is torch.OutOfMemoryError  # what was refused says so
    else:
        # Of shapes the meta kernel says the same in slightly other words.
        assert kind is whole[0] and text.split()[:6] == whole[1].split()[:6]
    assert BRIDGE.open() == 0


def test_gradients_pass_a_joined_cat():
    def gradients():
        xs = [x.requires_grad_() for x in _filled(0)]
        (torch.cat(xs) * torch.arange(31.0, device="cuda")).sum().backward()
        return [x.grad.cpu() for x in xs]

    whole = gradients()
    _refuse_cat()
    assert all(map(torch.equal, whole, gradients()))


def test_a_joined_cat_refuses_what_cat_does():
    xs = [torch.ones(2, 3, device="cuda"), torch.ones(3, 2, device="cuda")]
    _refuse_cat()
    with pytest.raises(RuntimeError, match="Sizes of tensors must match except "
                                           "in dimension 0"):
        torch.cat(xs)
    assert BRIDGE.open() == 0


def test_one_operand_that_is_refused_is_out_of_memory():
    xs = [torch.ones(n, device="cuda") for n in (4, 64, 4)]
    BRIDGE.room(_ROOM, most=256)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        torch.cat(xs)
    assert BRIDGE.open() == 0
