# SPDX-License-Identifier: Apache-2.0
"""Graphs: operands that are asked to leave, and memory that is mapped anew.

Under our allocator a captured graph of a kernel, a copy and a fill must keep
what it reads on the device until it is gone. And what the product never does,
but the simulated device must know: the driver alone (driver.py) takes a
captured operand's mapping away and maps the same or another handle there.
"""

from tests.gpu_kit import answer
from tests.gpu_kit.driver import Driver
from tests.gpu_kit.driver import View
from tests.gpu_kit.on_device import MIB
from tests.gpu_kit.on_device import OnDevice

ASKED = ("Does a graph keep its operands, and what does it read after their "
         "memory was mapped anew?")


def run(said):
    kept = said.must(said.child(operands))
    said.promise("what a graph reads stays on the device",
                 kept["away"]["host"] == kept["away"]["disk"] == 0,
                 f"{kept['away']}")
    said.promise("everything else leaves", kept["others"] > 0,
                 f"{kept['others']} bytes of it left")
    said.promise("every replay is right", kept["wrong"] == 0,
                 f"{kept['wrong']} wrong")
    said.promise("it leaves once the graph is gone",
                 kept["afterwards"]["device"] == 0, f"{kept['afterwards']}")
    said.promise("and its numbers are the same when it is back",
                 kept["still_right"])
    said.promise("no complaint of the simulated device",
                 not kept["complaints"], f"{kept['complaints']}")
    anew = said.must(said.child(mapped_anew))
    for name in ("the same handle", "another handle"):
        said.fact(f"a graph reads what is there after {name} was mapped",
                  anew[name], True)


def operands(said):
    """A child: a graph between evictions."""
    device = OnDevice(said, host_budget=512 * MIB, disk_budget=0)
    import torch

    import stratalloc
    from stratalloc._tiering import tiers as _tiers

    count = 4 * MIB
    weight = torch.nn.Parameter(torch.arange(count, device="cuda") % 97 * 1.,
                                requires_grad=False)
    # Whole handles of its own, whatever lies beside the weight.
    other = torch.nn.Parameter(torch.ones(8 * count, device="cuda"),
                               requires_grad=False)
    x = torch.zeros(count, device="cuda")
    results = torch.zeros(3, count, device="cuda")

    def work():
        torch.add(weight, x, out=results[0])  # kernel
        results[1].copy_(weight)  # copy
        results[2].zero_()  # fill

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    wrong, others = 0, 0
    before = torch.arange(count) % 97 * 1.
    for value in (1., 2., 3.):
        stratalloc.evict()
        away = _tiers.residency(weight)
        others = max(others, _tiers.residency(other)["host"])
        x.fill_(value)
        results[2].fill_(5.)
        graph.replay()
        torch.cuda.synchronize()
        found = results.cpu()
        wrong += not (torch.equal(found[0], before + value)
                      and torch.equal(found[1], before)
                      and not bool(found[2].any()))
    graph.reset()
    del graph
    torch.cuda.synchronize()
    stratalloc.evict(weight)
    afterwards = _tiers.residency(weight)
    return {"away": away, "others": others, "wrong": wrong,
            "afterwards": afterwards,
            "still_right": torch.equal(weight.cpu(), before),
            "complaints": device.complaints()}


def mapped_anew(said):
    """A child: PyTorch's allocator, and the driver's calls by hand."""
    device = OnDevice(said, "native")
    torch = device.torch
    torch.cuda.init()
    torch.ones(1, device="cuda")
    driver = Driver()
    size = 8 * MIB
    count = size // 4
    address = driver.reserve(size)
    first, second = driver.create(size), driver.create(size)
    driver.map(address, size, first)
    driver.set_access(address, size)
    tensor = torch.as_tensor(View(address, count), device="cuda")
    tensor.fill_(3.)
    results = torch.zeros(3, count, device="cuda")

    def work():
        torch.mul(tensor, 2., out=results[0])
        results[1].copy_(tensor)
        results[2].zero_()

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    found = {}
    for value, (name, handle) in enumerate(
            (("another handle", second), ("the same handle", first)), 5):
        driver.unmap(address, size)
        driver.map(address, size, handle)
        driver.set_access(address, size)
        tensor.fill_(float(value))
        results.fill_(1.)
        graph.replay()
        torch.cuda.synchronize()
        there = results.cpu()
        found[name] = bool((there[0] == 2. * value).all()
                           and (there[1] == value).all()
                           and (there[2] == 0).all())
    graph.reset()
    del tensor
    torch.cuda.synchronize()
    driver.unmap(address, size)
    driver.release(first)
    driver.release(second)
    driver.free(address, size)
    return found


if __name__ == "__main__":
    answer.main(run, ASKED)
