# SPDX-License-Identifier: Apache-2.0
"""limit(): a scope that may not own more, and the error that names it."""

import gc

import pytest

from stratalloc import simulate

simulate.load("256MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402

MIB = 1 << 20


def make(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def limits():
    return {row["owner"]: (row["bytes"], row["owned"])
            for row in stratalloc.report()["limits"]}


@pytest.fixture(autouse=True)
def _no_limit_is_left():
    gc.collect()
    yield
    assert limits() == {}


def test_what_is_more_is_refused_and_the_scope_named():
    with stratalloc.limit("4 MiB", scope="cache"):
        with stratalloc.scope("cache"):
            first = make(3 * MIB)
            with pytest.raises(torch.OutOfMemoryError) as refused:
                make(2 * MIB)
        assert str(refused.value) == (
            "CUDA out of memory. Tried to allocate 2.00 MiB in cache on GPU 0, "
            "but cache is limited to 4.00 MiB (stratalloc.limit) and owns 3.00 "
            "MiB. Raise the limit by 1024.00 KiB, or let cache hold less.")
        assert limits() == {"cache": (4 * MIB, 3 * MIB)}
        make(200 * MIB)  # others may have what they like
        with stratalloc.scope("cache"):
            make(MIB)  # up to the limit
            del first
            make(4 * MIB)
            with stratalloc.scope("inner"), pytest.raises(
                    torch.OutOfMemoryError, match="in cache/inner on GPU 0"):
                make(5 * MIB)


def test_a_module_is_limited_with_its_children_in_both_directions():
    class Limited(nn.Sequential):
        pass

    model = Limited(*[nn.Linear(256, 256, bias=False)
                      for _ in range(3)]).cuda()
    x = torch.randn(4, 256, device="cuda")
    model(x)
    owned = sum(row.bytes for row in stratalloc.holders().rows
                if row.name.startswith("Limited"))
    # Three gradients of 256 KiB are not in it.
    with stratalloc.limit(owned + 300 * 1024, scope=model) as limit:
        loss = model(x).sum()
        with pytest.raises(torch.OutOfMemoryError,
                           match=r"in Limited\.\d on GPU 0, but Limited is"):
            loss.backward()
        limit.remove()
        model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_nothing_is_evicted_for_what_is_refused():
    weights = nn.Linear(4096, 4096, bias=False).cuda()  # 64 MiB
    fill = make(150 * MIB)
    before = stratalloc.stats()["tiers"]["bytes_evicted"]
    with stratalloc.limit(0, scope="nothing"), stratalloc.scope("nothing"):
        with pytest.raises(torch.OutOfMemoryError, match="limited to 0 bytes"):
            make(100 * MIB)
    assert stratalloc.stats()["tiers"]["bytes_evicted"] == before
    del fill, weights


def test_observers_and_counters_hear_of_it():
    heard = []
    torch._C._cuda_attach_out_of_memory_observer(
        lambda device, size, *rest: heard.append((device, size)))
    before = torch.cuda.memory_stats()["num_ooms"]
    with stratalloc.limit(0, scope="heard"), stratalloc.scope("heard"):
        with pytest.raises(torch.OutOfMemoryError):
            make(MIB)
    assert heard == [(0, MIB)]
    assert torch.cuda.memory_stats()["num_ooms"] == before + 1


def test_a_block_that_is_not_split_is_taken_as_a_whole():
    pool = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(pool):
        make(10 * MIB)
        with stratalloc.limit("3 MiB", scope="whole"):
            with stratalloc.scope("whole"), pytest.raises(
                    torch.OutOfMemoryError, match="whole is limited to 3.00"):
                make(2 * MIB)
            assert limits() == {"whole": (3 * MIB, 0)}


def test_explain_knows_of_it():
    with stratalloc.limit("1 MiB", scope="asked"):
        with stratalloc.scope("asked"):
            said = stratalloc.explain("4 MiB")
            assert said.served_by == "limit" and not said.fits
            assert "asked is limited to 1024.00 KiB" in str(said)
            assert stratalloc.explain("1 MiB").fits
        assert stratalloc.explain("4 MiB").fits


def test_a_program_goes_on_after_it():
    with stratalloc.limit("2 MiB", scope="goes on"), stratalloc.scope("goes on"):
        for _ in range(50):
            kept = make(MIB)
            with pytest.raises(torch.OutOfMemoryError):
                make(2 * MIB)
            del kept


def test_a_later_limit_replaces_and_removing_twice_is_nothing():
    first = stratalloc.limit("1 MiB", scope="twice")
    second = stratalloc.limit("2 MiB", scope="twice")
    assert limits() == {"twice": (2 * MIB, 0)}
    assert repr(second) == "<stratalloc.Limit of twice on device 0: 2 MiB>"
    second.remove()
    assert limits() == {}
    first.remove()
    second.remove()


def test_the_end_of_an_inner_limit_puts_the_outer_back():
    with stratalloc.limit("2 MiB", scope="nested"):
        with stratalloc.limit("1 MiB", scope="nested"):
            assert limits() == {"nested": (MIB, 0)}
        assert limits() == {"nested": (2 * MIB, 0)}


@pytest.mark.parametrize("size, scope, error, says", [
    (-1, "x", ValueError, "give bytes from 0"),
    (1 << 61, "x", ValueError, "give bytes from 0"),
    ("2 miles", "x", ValueError, "2 miles"),
    (None, "x", ValueError, "None"),
    (float("inf"), "x", ValueError, "infinity"),
    (1, "", ValueError, "scope must be non-empty"),
    (1, "a\0b", ValueError, "scope must .* NUL"),
    (1, None, TypeError, "scope must be a str or an nn.Module"),
    (1, 7, TypeError, "must be a str"),
])
def test_bad_input(size, scope, error, says):
    with pytest.raises(error, match=says):
        stratalloc.limit(size, scope=scope)


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", __file__]))


def test_the_limit_of_a_part_goes_with_it():
    model = nn.Sequential(nn.Linear(64, 64)).cuda()
    part = nn.Linear(64, 64).cuda()
    with stratalloc.limit("1 MiB", scope=part) as limit:
        before = limit.scope
        model.add_module("part", part)
        stratalloc.watch(model)
        assert limit.scope != before
        assert limit.scope.endswith(".part")
        assert [row["owner"] for row in stratalloc.report()["limits"]] == [
            limit.scope]
        with pytest.raises(torch.OutOfMemoryError, match="part"):
            part(torch.ones(8192, 64, device="cuda"))
    assert stratalloc.report()["limits"] == []
