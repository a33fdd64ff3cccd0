# SPDX-License-Identifier: Apache-2.0
"""A starved model through everything that saves, loads or copies it.

    python -m tests.system.starved.saving [--models gpt2 llama] [--operations ...]
        [--json FILE]

Each operation runs in a process of its own on a card that holds two thirds of
the parameters. A row has the model's bytes on the device before and after, the
bytes that came and went, and what is still pinned. Red: an error, other bytes
than the CPU's, anything pinned afterwards, or a comparison of storages that
restores a byte.

safetensors asks Tensor.data_ptr() of tied weights, and save_model() of all: it
only compares, but nobody can tell. Those are brought back, and the newest stay
until somebody lacks room: "handed out" in a row, an eighth of the card at most.
"""

import argparse
import copy
import os
import sys
import tempfile

from tests.system.starved import place
from tests.system.starved import tables
from tests.system.starved import zygote

MIB = 1 << 20
_PARAMETERS = 48 * MIB
_RATIO = 1.5
MODELS = ("gpt2", "llama", "tied")


def _state(model):
    return {name: tensor.cpu() for name, tensor in model.state_dict().items()}


def _same(left, right):
    import torch

    return left.keys() == right.keys() and all(
        torch.equal(left[name].cpu(), right[name].cpu()) for name in left)


def _compare_addresses(model, folder, right):
    """What torch.save, safetensors and transformers ask before they save."""
    del folder
    from safetensors import torch as safetensors
    from transformers import pytorch_utils

    state = model.state_dict()
    safetensors._find_shared_tensors(state)
    for tensor in state.values():
        pytorch_utils.id_tensor_storage(tensor)
        tensor.untyped_storage().data_ptr()
    return state.keys() == right.keys()


def _torch_save(model, folder, right):
    import torch

    path = os.path.join(folder, "model.pt")
    torch.save(model.state_dict(), path)
    return _same(torch.load(path, map_location="cpu"), right)


def _save_pretrained(model, folder, right):
    from safetensors.torch import load_file

    model.save_pretrained(folder)
    saved = load_file(os.path.join(folder, "model.safetensors"))
    # A tied weight is saved once.
    return all(_same({name: saved[name]}, {name: right[name]})
               for name in saved) and len(saved) >= len(right) - 1


def _safetensors_save_model(model, folder, right):
    from safetensors.torch import load_file, save_model

    path = os.path.join(folder, "model.safetensors")
    save_model(model, path)
    saved = load_file(path)
    return all(_same({name: saved[name]}, {name: right[name]})
               for name in saved)


def _load_state_dict(model, folder, right):
    del folder
    doubled = {name: 2 * tensor for name, tensor in right.items()}
    model.load_state_dict(doubled)
    return _same(_state(model), doubled)


def _deepcopy(model, folder, right):
    del folder
    return _same(_state(copy.deepcopy(model)), right)


def _trainer_checkpoint(model, folder, right):
    import torch
    from safetensors.torch import load_file
    from transformers import Trainer, TrainingArguments

    from tests.system.starved import jobs
    from tests.system.starved import models

    del right
    batches = models.MODELS["gpt2"].batches(2)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=folder, max_steps=2, report_to=[], save_steps=1,
            per_device_train_batch_size=len(batches[0]["labels"]),
            disable_tqdm=True),
        train_dataset=jobs._rows(batches))
    trainer.train()
    last = os.path.join(folder, "checkpoint-2")
    torch.load(os.path.join(last, "optimizer.pt"), map_location="cpu")
    saved = load_file(os.path.join(last, "model.safetensors"))
    now = _state(model)
    return all(_same({name: saved[name]}, {name: now[name]}) for name in saved)


OPERATIONS = {
    "compare_addresses": _compare_addresses,
    "torch_save": _torch_save,
    "save_pretrained": _save_pretrained,
    "safetensors_save_model": _safetensors_save_model,
    "load_state_dict": _load_state_dict,
    "deepcopy": _deepcopy,
    "trainer_checkpoint": _trainer_checkpoint,
}


def _run(name, operation, capacity):
    """One operation in this process; the row."""
    import gc

    import torch

    import stratalloc
    from stratalloc._tiering import tiers as _tiers
    from tests.system.starved import models

    model = models.MODELS[name].of_size(_PARAMETERS)
    right = copy.deepcopy(model.state_dict())
    place.device(capacity)
    model.to("cuda")
    before, moved = _tiers.residency(model)["device"], place.moved()
    with tempfile.TemporaryDirectory() as folder:
        same = OPERATIONS[operation](model, folder, right)
    gc.collect()
    torch.cuda.synchronize()
    total = place.moved()
    pinned = stratalloc.report()["pinned"]
    return {
        "model": name, "operation": operation, "capacity": capacity,
        "parameters": models.parameter_bytes(model),
        "before": before, "after": _tiers.residency(model)["device"],
        "in": total["in"] - moved["in"], "out": total["out"] - moved["out"],
        "handed_out": sum(row["bytes"] for row in pinned if _is_handed(row)),
        "pinned": [row for row in pinned if not _is_handed(row)],
        "tied": _tied_bytes(model), "same": same, "faults": place.faults(),
    }


def _is_handed(row):
    return row["reason"] == "handed out as pointers"


def _tied_bytes(model):
    """Bytes of handles under storages that have several names."""
    seen, tied = set(), {}
    for tensor in model.state_dict().values():
        storage = tensor.untyped_storage()
        if storage.data_ptr() in seen:
            # Both ends may share a handle with others.
            tied[storage.data_ptr()] = (
                place.pages(storage.nbytes() - 1) + 2 * place.PAGE)
        seen.add(storage.data_ptr())
    return sum(tied.values())


def red(row):
    """Why a row is red; "" if it is not."""
    if row.get("error"):
        return row["error"]
    if not row["same"]:
        return "other bytes than the CPU's"
    if row["faults"]:
        return "; ".join(row["faults"])
    if row["pinned"]:
        return f"pinned afterwards: {row['pinned']}"
    if row["handed_out"] > row["capacity"] // 8:
        return f"{row['handed_out']} bytes stay as handed out"
    if row["operation"] == "compare_addresses":
        return (f"comparing addresses restored {row['in']} bytes"
                if row["in"] > row["tied"] else "")
    return "" if row["in"] else "nothing came back: the card was large enough"


def rows(names, operations):
    from tests.system.starved import models

    for name in names:
        size = models.parameter_bytes(models.MODELS[name].of_size(_PARAMETERS))
        for operation in operations:
            if operation == "save_pretrained" and name == "tied":
                continue  # no model of transformers
            if operation == "trainer_checkpoint" and name != "gpt2":
                continue
            try:
                yield zygote.run(_run, name, operation,
                                 place.pages(size / _RATIO))
            except (zygote.Refused, zygote.Died) as error:
                yield {"model": name, "operation": operation,
                       "error": str(error)}


def _line(row):
    why = red(row)
    name = f"{row['model']:8} {row['operation']:24}"
    if "before" not in row:
        return f"{name} RED {why}"
    return (f"{name} on the device {tables.mib(row['before'])} before, "
            f"{tables.mib(row['after'])} after; in {tables.mib(row['in'])}, "
            f"out {tables.mib(row['out'])}; handed out "
            f"{tables.mib(row['handed_out'])}" + (f"  RED {why}" if why else ""))


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.starved.saving", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--operations", nargs="+", default=list(OPERATIONS))
    parser.add_argument("--json", metavar="FILE", help="- is stdout")
    args = parser.parse_args(argv)
    zygote.prepare()
    done = []
    for row in rows(args.models, args.operations):
        done.append(row)
        print(_line(row), flush=True)
    if args.json:
        tables.write_json(args.json, {"rows": [
            {**row, "red": red(row)} for row in done]})
    return 1 if any(red(row) for row in done) else 0


if __name__ == "__main__":
    sys.exit(main())
