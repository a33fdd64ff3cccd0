# SPDX-License-Identifier: Apache-2.0
"""A module that offloads parameters: `memory_management`."""

from tests.system.documents.block import Block
from tests.system.documents.block import Document
from tests.system.documents.block import Group

_PRELUDE = """
import threading

import torch

torch.manual_seed(0)
"""

_QUICK_START = Block(
    lines=(20, 46), sha256="1e32dcd3c5579611", prelude="""
threads = threading.active_count()
""", epilogue="""
assert threading.active_count() == threads
assert output.shape == (32, 10) and output.device.type == "cuda"
with torch.no_grad():
    on_cpu = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(),
                           nn.Linear(2048, 1024), nn.Linear(1024, 10))
    on_cpu.load_state_dict({name: value.cpu() for name, value
                            in model.state_dict().items()})
    torch.testing.assert_close(output.detach().cpu(), on_cpu(x.cpu()))
""")

_INSTALLATION = Block(
    lines=(54, 54), sha256="c8aba90af549ebab", kind="shell",
    made_of="a shell redirects to a file at an unquoted >, so each "
    "requirement needs quotes; nothing is installed for it: both are looked "
    "up", epilogue="""
from importlib.metadata import version

assert tuple(map(int, version("torch").split(".")[:2])) >= (1, 9)
assert tuple(map(int, version("psutil").split(".")[:2])) >= (5, 8)
""")

_LOW_MEMORY = Block(
    lines=(63, 64), sha256="c0851727095aac4c", epilogue="""
default = MemoryConfig()
assert config.gpu_offload_threshold < default.gpu_offload_threshold
assert config.enable_disk_offload and config.compress_disk_cache
x = torch.randn(4, 1024, device=device)
model(x).sum().backward()
manager.cleanup()
assert threading.active_count() == threads
""")

_HIGH_PERFORMANCE = Block(
    lines=(69, 70), sha256="8ad5f194c0b159d6", epilogue="""
assert config.gpu_offload_threshold > default.gpu_offload_threshold
assert config.prefetch_enabled
model(x)
manager.cleanup()
assert threading.active_count() == threads
""")

_CUSTOM = Block(
    lines=(75, 82), sha256="e9997eb87c361eda", prelude="""
from memory_management import MemoryManager
""", epilogue="""
assert config == MemoryConfig()  # what it names are the defaults
manager.cleanup()
assert threading.active_count() == threads
""")

_BY_HAND = Block(
    lines=(89, 101), sha256="c1fc8ac086bf6039", epilogue="""
linear_layer = linear_layer.to(device)
kept = wrapped_layer.weight.detach().cpu().clone()
wrapped_layer.offload_all()
wrapped_layer.load_all()
assert torch.equal(wrapped_layer.weight.detach().cpu(), kept)
x = torch.randn(8, 1024, device=device)
wrapped_layer.offload_all()
torch.testing.assert_close(
    wrapped_layer(x).detach().cpu(),
    torch.nn.functional.linear(
        x.cpu(), kept, wrapped_layer.bias.detach().cpu()))
""")

_LAYER_TYPES = Block(
    lines=(106, 110), sha256="78df417a92712f9e", prelude="""
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 32),
                      nn.LSTM(32, 16)).to(device)
image = torch.randn(2, 3, 8, 8, device=device)
want = model(image)[0].detach().cpu()
before = manager.get_memory_summary()["system"]["managed_modules"]
""", epilogue="""
managed = manager.get_memory_summary()["system"]["managed_modules"]
assert managed - before == 3, (before, managed)
torch.testing.assert_close(model(image)[0].detach().cpu(), want)
""")

_MONITORING = Block(
    lines=(115, 119), sha256="25e8a22816236d6c", epilogue="""
assert 0 <= summary["gpu"]["usage_ratio"] <= 1
assert summary["system"]["managed_modules"] == managed
assert summary["system"]["total_offloads"] > 0
assert printed.count("\\n") == 3 and "%" in printed
manager.cleanup()
assert threading.active_count() == threads
""")

DOCUMENT = Document(
    name="memory_management",
    file="000_3c6cb5e87861d84d.txt",
    title="PyTorch Memory Management System",
    prelude=_PRELUDE,
    # Its first model has 16.1 MiB of parameters: more than the card.
    groups={"": Group("16MiB", enabled_by="import")},
    blocks=(_QUICK_START, _INSTALLATION, _LOW_MEMORY, _HIGH_PERFORMANCE,
            _CUSTOM, _BY_HAND, _LAYER_TYPES, _MONITORING),
)
