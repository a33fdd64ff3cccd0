# SPDX-License-Identifier: Apache-2.0
"""A guide to large models of sketched layers, with a stand-in for the package
that has those layers."""

from tests.system.documents.block import Block
from tests.system.documents.block import Document
from tests.system.documents.block import Group

_PRELUDE = """
import math
import threading

import torch
import stratalloc

MIB = 1 << 20
torch.manual_seed(0)
"""

_PROFILER = Block(
    lines=(13, 80), sha256="df03184f9825410a", epilogue="""
assert set(memory_usage) == {"cpu", "gpu_allocated", "gpu_cached"}
assert output.shape == (512, 2048)
# The output and, for its backward, both factors, the input and what is
# between them.
held = sum((512 * 2048, 4096 * 1024, 1024 * 2048, 512 * 4096, 512 * 1024))
assert held * 4 <= memory_usage["gpu_allocated"] * MIB < held * 4 + MIB
assert memory_usage["gpu_cached"] >= memory_usage["gpu_allocated"]
# Two characters, as the text has them, and no line feed.
assert printed.startswith("\\\\nSKLinear Forward Pass Memory Usage:")
output = None
""")

_BREAKDOWN = Block(
    lines=(86, 142), sha256="9ac99b75ddc13073", epilogue="""
import contextlib
import io

told = io.StringIO()
with contextlib.redirect_stdout(told):
    analyze_layer_memory_components()
lines = told.getvalue().splitlines()
assert sum("Analyzing layer: " in line for line in lines) == 3
standard, sketched = 1024 * 512 + 512, 1024 * 256 + 256 * 512 + 512
assert f"    Parameters: {standard:,}" in lines
assert f"    Parameters: {sketched:,}" in lines
assert f"    Reduction: {(1 - sketched / standard) * 100:.1f}%" in lines
assert sum("Sketch intermediate: " in line for line in lines) == 3
""")

_CHECKPOINTED = Block(
    lines=(151, 219), sha256="c4c3689b5c028830", epilogue="""
assert len(model.segments) == 2 and output.shape == (64, 64)
model.load_state_dict(model.state_dict())
model.zero_grad()
x.grad = None
criterion(model(x), y).backward()
got = [parameter.grad.clone() for parameter in model.parameters()]
model.zero_grad()
model.eval()  # as it says: no checkpoints then
criterion(model(x), y).backward()
for one, parameter in zip(got, model.parameters()):
    torch.testing.assert_close(one, parameter.grad)
assert all(optimizer.state[p] for p in model.parameters())
""")

_MIXED = Block(
    lines=(225, 266), group="patience", prelude="import panther as pr",
    sha256="b819f3ffa3348da4", epilogue="""
import contextlib
import io

told = io.StringIO()
with contextlib.redirect_stdout(told):
    train_with_mixed_precision()
losses = [float(line.split("Loss: ")[1])
          for line in told.getvalue().splitlines()]
assert len(losses) == 25 and all(map(math.isfinite, losses)), losses
""")

_ADAPTIVE = Block(
    lines=(272, 374), sha256="581c52c640f044bd", group="tight", epilogue="""
import contextlib
import io

from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset

model = torch.nn.Sequential(
    torch.nn.Linear(64, 16384), torch.nn.ReLU(), torch.nn.Linear(16384, 10)
).cuda()
trainer = AdaptiveBatchTrainer(
    model, torch.optim.SGD(model.parameters(), lr=.01))
refused = []
test = trainer._test_batch_size


def tested(loader, size):
    try:
        return test(loader, size)
    except RuntimeError as error:
        refused.append((size, type(error), str(error)))
        raise


trainer._test_batch_size = tested
data = TensorDataset(torch.randn(1024, 64), torch.randint(0, 10, (1024,)))
told = io.StringIO()
with contextlib.redirect_stdout(told):
    mean = trainer.train_epoch(DataLoader(data, batch_size=512))
assert refused and all(
    kind is torch.OutOfMemoryError and "out of memory" in text
    for _, kind, text in refused), refused
size = int(told.getvalue().split("Using batch size: ")[1].split()[0])
assert 64 <= size < min(size for size, _, _ in refused) <= 512
assert math.isfinite(mean)
# What was refused is not held, and the card serves what it served before.
torch.cuda.empty_cache()
trainer.optimizer.zero_grad()
assert torch.cuda.memory_allocated() < 16 * MIB
assert torch.ones(16 * MIB, dtype=torch.uint8, device="cuda").sum() == (
    16 * MIB)
""")

_FOUR = Block(
    lines=(383, 445), sha256="7b8d4a490eaa1df5", group="four",
    prelude="import panther as pr", epilogue="""
assert "Output shape: torch.Size([32, 256]), Device: cuda:0" in printed
for device, layer in enumerate(model.layers):
    assert layer.down.device == torch.device("cuda", device)
    held = stratalloc.stats(device=device)["allocated"]["current"]
    assert held >= 4 * sum(p.numel() for p in layer.parameters())
want = x.cpu()
for layer in model.layers[:-1]:
    want = torch.relu(
        want @ layer.down.cpu() @ layer.up.cpu() + layer.bias.cpu())
layer = model.layers[-1]
want = want @ layer.down.cpu() @ layer.up.cpu() + layer.bias.cpu()
torch.testing.assert_close(output.cpu(), want, rtol=1e-3, atol=1e-4)
""")

_STREAMED = Block(
    lines=(451, 491), sha256="18d49e170fb8e191",
    prelude="model = output = optimizer = None", epilogue="""
assert predictions.shape == (10000, 10)
assert predictions.device.type == "cpu"
held = sum(p.numel() for p in model.parameters()) * 4
torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated()
again = inference_engine.predict_large_batch(large_input)
torch.testing.assert_close(again, predictions)
# A chunk, what is between the factors, two results, and the rounding.
chunk = 500 * (1024 + 512 + 2 * 10) * 4
assert torch.cuda.max_memory_allocated() - before <= chunk + 4096
""")

_MONITOR = Block(
    lines=(500, 558), sha256="df71afbb261bf9ec", epilogue="""
import contextlib
import io

monitor = MemoryMonitor(interval=.001)
threads = threading.active_count()
monitor.start_monitoring()
held = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
looks = len(monitor.memory_log)
while len(monitor.memory_log) < looks + 3:
    time.sleep(.001)
del held
looks = len(monitor.memory_log)
while len(monitor.memory_log) < looks + 3:
    time.sleep(.001)
monitor.stop_monitoring()
assert threading.active_count() == threads
told = io.StringIO()
with contextlib.redirect_stdout(told):
    monitor.plot_memory_usage()
assert plt.get_fignums()
line, = plt.gca().lines
assert list(line.get_ydata()) == monitor.memory_log
plt.close("all")
assert max(monitor.memory_log) >= monitor.memory_log[-1] + 64
assert f"Maximum: {max(monitor.memory_log):.2f} MB" in told.getvalue()
""")

DOCUMENT = Document(
    name="large_models",
    file="002_6123020877815cd3.txt",
    title="Memory Optimization",
    format="rst",
    prelude=_PRELUDE,
    # 500 steps in half precision, which a processor without instructions for
    # it takes minutes for.
    groups={"": Group("256MiB"), "patience": Group("128MiB"),
            "tight": Group("64MiB"), "four": Group("128MiB", devices=4)},
    blocks=(_PROFILER, _BREAKDOWN, _CHECKPOINTED, _MIXED, _ADAPTIVE, _FOUR,
            _STREAMED, _MONITOR),
)
