# SPDX-License-Identifier: Apache-2.0
"""A guide to PyTorch's own means against running out of memory."""

from tests.system.documents.block import Block
from tests.system.documents.block import Document
from tests.system.documents.block import Group

_PRELUDE = """
import torch
import stratalloc

MIB = 1 << 20
torch.manual_seed(0)


def make_model(width=1000):
    return torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.ReLU(),
        torch.nn.Linear(width, width))


def gradients(model):
    return [parameter.grad.clone() for parameter in model.parameters()]


def totals():
    return stratalloc.stats()["allocated"]
"""

_MODEL = """
output = None
model = make_model().cuda()
input_data = torch.randn(64, 1000, device="cuda")
"""

_ON_CPU = """
input_data = torch.randn(64, 1000)
target_data = torch.randint(0, 10, (64,))
"""

_PEAKS = Block(
    lines=(8, 22), sha256="24ef63bb8c7f665f", prelude=_MODEL, epilogue="""
assert round(peak_gb * 1e9) == totals()["peak"] >= totals()["current"]
assert reserved_gb >= allocated_gb > 0 and peak_gb > allocated_gb
assert totals()["current"] == sum(
    row.bytes for row in stratalloc.holders().rows)
assert printed.count(" GB\\n") == 3
""")

_TRACKER = Block(
    lines=(28, 58), sha256="074b9eed9d6dcae4", prelude=_MODEL, epilogue="""
assert tracker.get_peak() >= tracker.get_allocated() > 0
assert tracker.start_memory == 2 * (1000 * 1000 * 4 + 4096) + 256512, (
    tracker.start_memory)  # in torch's steps of 512 bytes
assert printed.startswith("Model inference - Allocated: 0.00 GB, Peak: ")
""")

_NO_GRAD = Block(
    lines=(68, 77), sha256="b6607935f3a3c44b", prelude=_MODEL, epilogue="""
assert not output.requires_grad and not model.training
torch.testing.assert_close(output, model(input_data).detach())
""")

_INFERENCE = Block(
    lines=(85, 91), sha256="048e132d698615e2", prelude=_MODEL, epilogue="""
assert output.is_inference() and not model.training
""")

_IMPACT = Block(
    lines=(97, 118), sha256="86af011859eec3a5", group="large", epilogue="""
# One layer keeps nothing for backward but its input: no saving to be seen.
held = 10000 * 10000 * 4
for peak in (standard_peak, no_grad_peak, inference_peak):
    assert held < peak * 1e9 < held * 1.05, peak
assert round(inference_peak * 1e9) == totals()["peak"]
assert printed.count("\\n") == 3 and "inference_mode: 0.41 GB" in printed
""")

_CACHE = Block(
    lines=(126, 135), sha256="36071dcc22f263c9", prelude="""
free = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
del free
reserved = torch.cuda.memory_reserved()
""", epilogue="""
assert torch.cuda.memory_reserved() <= reserved - 32 * MIB
before, after = printed.splitlines()
assert before.split()[1:] == after.split()[1:]  # what is allocated stays
""")

_CACHING_LOOP = Block(
    lines=(141, 162), sha256="d3f17bc9188cd793", prelude=_MODEL, epilogue="""
batches = [(torch.randn(8, 1000), None) for _ in range(12)]
seen = []
hook = model.register_forward_hook(
    lambda module, inputs, result: seen.append(result.cpu()))
inference_with_cache_management(model, batches)
hook.remove()
assert len(seen) == 12 and not any(each.requires_grad for each in seen)
with torch.no_grad():
    for (data, _), got in zip(batches, seen):
        torch.testing.assert_close(got, model(data.cuda()).cpu())
torch.cuda.empty_cache()
spare = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
assert spare < 8 * MIB, spare
""")

_FRACTION = Block(
    lines=(168, 177), sha256="5aea860bd14f8e8f", epilogue="""
card = torch.cuda.get_device_properties(0).total_memory
assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
try:
    torch.empty(int(card * .95), dtype=torch.uint8, device="cuda")
    raise AssertionError("more than the fraction was given")
except torch.OutOfMemoryError as error:
    assert "memory fraction allows, 230.40 MiB" in str(error), error
    assert "set_per_process_memory_fraction()" in str(error), error
torch.cuda.set_per_process_memory_fraction(1.0)
torch.empty(int(card * .91), dtype=torch.uint8, device="cuda")
""", prelude="""
output = model = None
""")

_MODEL_WITH_CHECKPOINT = Block(
    lines=(187, 207), sha256="c5d853ef5ed50f41", epilogue="""
model = ModelWithCheckpoint().cuda()
x = torch.randn(16, 1000, device="cuda", requires_grad=True)
model(x).square().sum().backward()
kept, of_input = gradients(model), x.grad.clone()
model.zero_grad()
x.grad = None
model.layer3(model.layer2(model.layer1(x))).square().sum().backward()
for got, want in zip(kept + [of_input], gradients(model) + [x.grad]):
    torch.testing.assert_close(got, want)
""")

_BOTH_WAYS = Block(
    lines=(213, 219), sha256="329b4f9275f94458", prelude=_MODEL + """
x = torch.randn(16, 1000, device="cuda", requires_grad=True)
""", epilogue="""
results = []
for reentrant in (False, True, None):
    model.zero_grad()
    x.grad = None
    found = (model(x) if reentrant is None else
             checkpoint(model, x, use_reentrant=reentrant))
    found.square().sum().backward()
    results.append(gradients(model) + [x.grad])
for got, want in zip(results[0] + results[1], results[2] * 2):
    torch.testing.assert_close(got, want)
torch.testing.assert_close(output, model(x))
""")

_SAVINGS = Block(
    lines=(225, 259), sha256="bde922f15a9118cf", prelude="""
model = output = x = kept = results = None
""", epilogue="""
assert round(memory_with_checkpoint * 1e9) == totals()["peak"]
assert printed.count(" GB\\n") == 2 and "Memory saved: " in printed
with torch.no_grad():
    torch.testing.assert_close(output, model(input_data))
""")

_BATCH_NORM = Block(
    lines=(267, 280), sha256="115c93e7c9e8fec7", prelude=_ON_CPU, epilogue="""
assert output.shape == (64, 1000) and not output.requires_grad
assert not model[1].running_mean.any()  # no statistics were taken
""")

_DROPOUT = Block(
    lines=(286, 298), sha256="572c7e087de17b53", prelude=_ON_CPU, epilogue="""
torch.testing.assert_close(
    output, torch.relu(model[0](input_data)).detach())
""")

_LAYER_NORM = Block(
    lines=(304, 316), sha256="f7617e3d67012960", prelude=_ON_CPU, epilogue="""
assert output.shape == (64, 1000) and (output >= 0).all()
""")

_PRUNING = Block(
    lines=(324, 335), sha256="466265957b36ccfe", epilogue="""
assert int(printed.split(": ")[1]) >= 300 * 1000
assert (model.weight == 0).all(dim=1).sum() == 300
assert [name for name, _ in model.named_parameters()] == ["bias", "weight"]
""")

_PINNED = Block(
    lines=(343, 353), sha256="37bd51a4f54b65bd", prelude=_ON_CPU + """
input_data = torch.arange(64 * 1000.).reshape(64, 1000)
""", epilogue="""
pinned, rows = [], []
for data, target in data_loader:
    pinned.append(data.is_pinned() and target.is_pinned())
    moved = data.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    rows.append(moved.cpu())
assert pinned == [True, True]
torch.testing.assert_close(torch.cat(rows), input_data)
assert torch.cuda.host_memory_stats()["allocated_bytes.peak"] >= (
    32 * 1000 * 4)
""")

_LAZY = Block(
    lines=(359, 378), sha256="a556cee4fa82bc51", prelude="""
file_list = [f"part{number}.pt" for number in range(16)]
for number, name in enumerate(file_list):
    torch.save(torch.full((10,), float(number)), name)
""", epilogue="""
found = torch.cat(list(loader))
assert found.shape == (16, 10)
assert found[:, 0].tolist() == list(map(float, range(16)))
""")

_PROFILER = Block(
    lines=(386, 400), sha256="523e450d3c90cbec", prelude=_MODEL, epilogue="""
assert "CUDA Mem" in printed and "aten::addmm" in printed
linear, = [row for row in prof.key_averages() if row.key == "aten::addmm"]
assert linear.device_memory_usage >= 2 * 64 * 1000 * 4
""")

_MONITOR = Block(
    lines=(406, 437), sha256="cf9c91fc798efae6", prelude=_MODEL + """
class Looked(torch.nn.Module):
    \"\"\"Takes as long as the monitor's first look: an epoch would.\"\"\"

    def forward(self, x):
        while not getattr(monitor, "peak_memory", 0):
            time.sleep(.001)
        return x + 1


model = Looked()
""", epilogue="""
thread.join(30)
assert not thread.is_alive()
assert 0 < peak * 1e9 <= totals()["peak"]
assert printed.startswith("Peak memory: ")
""")

DOCUMENT = Document(
    name="memory_guide",
    file="001_254e4583fb5b4578.txt",
    title="PyTorch Memory Management Guide",
    prelude=_PRELUDE,
    groups={"": Group("256MiB"), "large": Group("1GiB")},
    blocks=(
        _PEAKS, _TRACKER, _NO_GRAD, _INFERENCE, _IMPACT, _CACHE,
        _CACHING_LOOP, _FRACTION, _MODEL_WITH_CHECKPOINT, _BOTH_WAYS,
        _SAVINGS, _BATCH_NORM, _DROPOUT, _LAYER_NORM, _PRUNING, _PINNED,
        _LAZY, _PROFILER, _MONITOR,
    ),
)
