# SPDX-License-Identifier: Apache-2.0
"""Libraries that plan by the card's size: what `gpu_limit` shows them, and a
device_map that put layers beside the GPU.

A process each: settings and imports are for a whole one.
"""

import json
import os

import pytest

from bazel import programs

MIB = 1 << 20

_MODEL = """
import json, os, tempfile
os.environ["HF_HUB_OFFLINE"] = "1"
import torch, stratalloc
from transformers import BertConfig, BertModel
MIB = 1 << 20
torch.manual_seed(0)
reference = BertModel(BertConfig(
    vocab_size=200, hidden_size=256, num_hidden_layers=8, num_attention_heads=4,
    intermediate_size=1024)).eval()
ids = torch.arange(16)[None]
folder = tempfile.mkdtemp()
reference.save_pretrained(folder)

def same(model):
    with torch.no_grad():
        return torch.allclose(model(ids.cuda()).last_hidden_state.cpu(),
                              reference(ids).last_hidden_state, atol=1e-4)
"""

_LIMITED = _MODEL + """
answers = {"at first": torch.cuda.mem_get_info()}
model = BertModel.from_pretrained(folder, device_map={"": 0}).eval()
right = same(model)
kept = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
reserved = torch.cuda.memory_reserved()
answers |= {"cuda": torch.cuda.mem_get_info(),
            "index": torch.cuda.mem_get_info(0),
            "cudart": torch.cuda.cudart().cudaMemGetInfo(0),
            "accelerator": torch.accelerator.get_memory_info()}
print(json.dumps({
    "right": right, "answers": answers, "reserved": reserved,
    "hardware": torch.cuda.get_device_properties(0).total_memory,
    "evicted": stratalloc.report()["tiers"]["bytes_evicted"]}))
"""

_DIVIDED = _MODEL + """
rooms = {0: 12 * MIB, "cpu": 200 * MIB}
whole = BertModel.from_pretrained(folder, device_map={"": 0}).eval()
print("before", flush=True)
right = []
for _ in range(2):
    divided = BertModel.from_pretrained(
        folder, device_map="auto", max_memory=rooms).eval()
    assert "cpu" in divided.hf_device_map.values()
    right.append(same(divided))
print(json.dumps({"right": right, "size": torch.cuda.mem_get_info()[1],
                  "driver": torch.cuda.get_device_properties(0).total_memory}))
"""


def _run(folder, text, *options):
    path = folder / "program.py"
    path.write_text(text)
    done = programs.run(
        "-m", "stratalloc", "run", "--simulate", "2GiB", *options, path,
        env={**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_gpu_limit_is_the_size_of_the_card_for_libraries(tmp_path):
    """pytorch and transformers size requests by torch.cuda.mem_get_info()."""
    limit = 24 * MIB
    saw, _ = _run(tmp_path, _LIMITED, "--conf", "gpu_limit:24MiB")
    assert saw["right"] and saw["evicted"] > 0
    answers = saw["answers"]
    assert answers.pop("at first") == [limit, limit]
    assert set(map(tuple, answers.values())) == {
        (limit - saw["reserved"], limit)}
    assert saw["hardware"] == 2048 * MIB


_FRACTION = """
import json
import torch, stratalloc
MIB = 1 << 20
total = torch.cuda.mem_get_info()[1]
fraction = 16 * MIB / total
seen = {"total": total, "set": fraction, "observed": []}
torch._C._cuda_attach_out_of_memory_observer(
    lambda device, size, allowed, free: seen["observed"].append(allowed))
torch.cuda.set_per_process_memory_fraction(fraction)
seen["read"] = torch.cuda.get_per_process_memory_fraction()
seen["unopened"] = stratalloc.report()["gpu_limit"]
kept = torch.empty(12 * MIB, dtype=torch.uint8, device="cuda")
seen["opened"] = stratalloc.report()["gpu_limit"]
refused, reports = [], []
stratalloc.on_oom(reports.append)

def ask(size):
    try:
        torch.empty(size * MIB, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        refused.append(str(error))
        return
    refused.append(None)

with stratalloc.scope("staying"):
    kept = torch.cuda.caching_allocator_alloc(12 * MIB)
for size in (8, 40, 80):
    ask(size)
torch.cuda.set_per_process_memory_fraction(1.0)
ask(40)
seen["refused"] = refused
seen["said"] = [[one.verdict.kind, one.verdict.sentence,
                 [[each.action, each.text] for each in one.suggestions
                  if each.action.startswith("raise")]] for one in reports]
print(json.dumps(seen))
"""


@pytest.mark.parametrize("options, card", [
    (("--conf", "gpu_limit:64MiB"), 64 * MIB), ((), 2048 * MIB)])
def test_a_memory_fraction_is_of_what_is_said_to_be_there(
        tmp_path, options, card):
    saw, _ = _run(tmp_path, _FRACTION, *options)
    assert saw["total"] == card
    assert saw["read"] == saw["set"] == 16 * MIB / card
    assert saw["unopened"] == saw["opened"] == 16 * MIB
    assert saw["observed"] == [16 * MIB] * 3
    few, some, many, whole = saw["refused"]
    assert whole is None, "40 MiB fit, once the fraction is taken back"
    for text, size in ((few, 8), (some, 40), (many, 80)):
        assert text.startswith(
            f"CUDA out of memory. Tried to allocate {size}.00 MiB"), text
    assert "The memory fraction allows 16.00 MiB of the card" in few
    raise_it = "raise it with torch.cuda.set_per_process_memory_fraction()"
    limited = "than the memory fraction allows, 16.00 MiB: " + raise_it
    assert limited + ", or" in some
    above = 80 * MIB > card
    assert limited + (" and raise gpu_limit, or" if above else ", or") in many
    assert [kind for kind, *_ in saw["said"]] == ["limit"] * 3
    assert all("the memory fraction allows" in sentence.lower()
               for _, sentence, _ in saw["said"]), saw["said"]
    raised = [[action for action, _ in made] for *_, made in saw["said"]]
    assert raised == [["raise_fraction"]] * 2 + [
        ["raise_limit" if above else "raise_fraction"]]
    if above:
        assert [made[0][1] for *_, made in saw["said"]] == [
            "Raise the memory fraction "
            "(torch.cuda.set_per_process_memory_fraction) from 0.25 to "
            "0.3125, by 4 MiB.",
            "Raise the memory fraction "
            "(torch.cuda.set_per_process_memory_fraction) from 0.25 to "
            "0.8125, by 36 MiB.",
            "Raise gpu_limit by 28 MiB to 92 MiB, and the memory fraction "
            "(torch.cuda.set_per_process_memory_fraction) from 0.25 to 1."]


@pytest.mark.parametrize("tiering, lines", [
    ("on", 1), pytest.param("off", 0, marks=pytest.mark.long)])
def test_device_map_beside_the_gpu_is_one_line(tmp_path, tiering, lines):
    saw, errors = _run(tmp_path, _DIVIDED, "--conf", f"tiering:{tiering}")
    assert saw["right"] == [True, True]
    assert saw["size"] == saw["driver"] == 2048 * MIB  # without gpu_limit
    said = [line for line in errors.splitlines() if "device_map put" in line]
    assert len(said) == lines
    for line in said:
        assert "parts of BertModel on the CPU or disk (encoder.layer." in line
        assert 'Write device_map={"": 0} instead' in line


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", __file__]))
