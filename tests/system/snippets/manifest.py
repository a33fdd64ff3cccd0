# SPDX-License-Identifier: Apache-2.0
"""Which snippets are not executed, and why; names that others mean.

A snippet that is neither executed nor listed here is a failure of the test.
"""

OUTPUT = "output or a picture, nothing that is typed"
TABLE = "a table of words"  # a docstring's block that begins with no command

# (file, beginning of the first line) -> reason.
LEFT = {
    ("CONTRIBUTING.md", "base=$(bazel"): "asks a Bazel server",
    ("CONTRIBUTING.md", "sed -i"): "breaks the tree on purpose",
    ("python_shim/stratalloc/pytest_plugin.py", "@pytest.mark"):
        "a decorator: its mark is looked up",
    ("tests/simulator/conformance/README.md", "conformance --cuda"):
        "a binary of the build, with its synopsis",
}

# Programs of the examples are run, as their pages say, by these tests.
RUN_BY = {
    "python_shim/examples/ci": "python_shim/stratalloc/tests/test_example_ci.py",
    "python_shim/examples/embedding_service":
        "python_shim/stratalloc/tests/test_example_service.py",
    "python_shim/examples/finetuning":
        "python_shim/stratalloc/tests/test_example_finetuning.py",
    "python_shim/examples/large_models":
        "python_shim/stratalloc/tests/test_example_guides.py",
    "python_shim/examples/memlord":
        "python_shim/compat/tests/test_memlord_programs.py",
    "python_shim/examples/memory_guide":
        "python_shim/stratalloc/tests/test_example_guides.py",
    "python_shim/examples/memory_management":
        "python_shim/compat/tests/test_memory_management_example.py",
    "python_shim/examples/memory_tracer":
        "python_shim/compat/tests/test_gpu_optimizer_example.py",
    "python_shim/examples/out_of_memory":
        "python_shim/stratalloc/tests/test_example_oom.py",
}

# Commands that only this machine's owner, the network or a server can serve.
OTHERS = ("pip", "pytest", "git", "sed", "gdb", "tar", "curl", "mkdir", "export",
          "python", "python3", ".venv/bin/python", "B=$(bazel", "base=$(bazel",
          "conformance", "gpu-kit/run.sh")

# Text in a block that names a place of another machine -> what stands for it.
REPLACED = {"/var/lib/node_exporter/": "", "/var/tmp/": ""}

# Pages whose programs and commands run in their order (walks.py), and the
# folder whose programs all of them have.
WALKS = ("README.md", "python_shim/docs/")
PROGRAMS = "python_shim/docs"

# Transcripts of commands that need other processes.
NOT_RUN = {"stratalloc top": "needs live processes: live_top_test"}

# Pages whose spans of code are for users; those of rooms name C++, which
# tests/repository/tidy looks up (unknown_names).
USERS = ("README.md", "python_shim/README.md", "telemetry/README.md",
         "python_shim/stratalloc/telemetry/README.md",
         "python_shim/compat/", "python_shim/docs/", "python_shim/examples/")

# Where a name in a span of these pages is looked up, in this order. Arguments
# are held against what is found in stratalloc.
HOMES = (
    "stratalloc", "stratalloc.Limit", "stratalloc.Leaks", "stratalloc.compat",
    "stratalloc._rendering.result.Rows",
    "stratalloc._rendering.result.Result", "stratalloc.compat.memlord",
    "stratalloc.compat.memlord.MemLord", "stratalloc.compat.gpu_optimizer",
    "stratalloc.compat.gpu_optimizer.MemoryTracer",
    "stratalloc.compat.memory_management",
    "stratalloc.compat.memory_management.MemoryConfig",
    "stratalloc.compat.memory_management.MemoryManager",
    "stratalloc.compat.memory_management.ModuleWrapper",
    "stratalloc.telemetry.report.fitting",
    "stratalloc.telemetry.identities", "stratalloc.telemetry.replay",
    "stratalloc.telemetry.exports.speedscope",
    "stratalloc.telemetry.exports.samples", "stratalloc.telemetry.exports",
    "torch", "torch.cuda", "torch.Tensor", "torch.nn.Module", "torch.optim",
    "torch.cuda.Stream", "torch.utils.data", "torch.nn", "torch.profiler",
    "builtins", "json", "logging", "logging.Logger", "pytest", "rich",
)

# Names that stand for a value of a program in spans.
VALUES = ("found", "losses", "model", "p", "x", "tracer", "mem", "module", "work",
          "loss", "nn", "y", "linear")

# Spans that look like code of stratalloc and are none.
SPANS_LEFT = {
    "AddmmBackward0 (backward)": "a name in an answer",
    "stratalloc.simulated_device": "a group of entry points",
    "stratalloc.NAME": "a pattern",
}
