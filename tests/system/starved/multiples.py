# SPDX-License-Identifier: Apache-2.0
"""Bytes moved per pass when parameters are a multiple of the card.

    python -m tests.system.starved.multiples [--programs demo,plain,llama]
        [--multiples 1.05 1.25 2 3] [--host-budget 4GiB]
        [--disk-budget 60GiB] [--layers 32] [--json FILE]

demo and plain: forwards of the demo's model and of a bias-free transformer of
1 GiB. llama: the shapes of Llama-7B (12.55 GiB in bfloat16) on 3 GiB, forwards
of 512 tokens and one step of SGD on 64: what 512 keep for backward would be
2.8 GiB of activations. Numbers are off, seconds virtual. A pass must bring back
at least what does not fit, parameters - card; the columns say how much more it
brought. Host memory and disk for what leaves are real even so: the 7B step
has 22 GiB off the card.
"""

import argparse
import os
import sys

from tests.system.starved import place
from tests.system.starved import tables
from tests.system.starved import zygote

_GIB = 1 << 30
_PASSES = 3
# The demo's table of words, which one operator reads: on cards that are hardly
# larger the model is given fewer words, and its row says so.
_DEMO_WORDS = 30522 * 384 * 4


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.starved.multiples", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default="demo,plain,llama")
    parser.add_argument("--multiples", type=float, nargs="+",
                        default=(1.05, 1.25, 2., 3.))
    parser.add_argument("--host-budget", default="4GiB")
    parser.add_argument("--disk-budget", default="60GiB")
    parser.add_argument("--layers", type=int, default=32, help="of llama (32)")
    parser.add_argument("--card", default="h200")
    parser.add_argument("--json", metavar="FILE", help="- is stdout")
    args = parser.parse_args(argv)
    # The card's cuBLAS workspace would be a third of the demo's card.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    os.environ.setdefault("CUBLASLT_WORKSPACE_SIZE", "128")
    zygote.prepare(card=args.card, numbers="off")
    import transformers  # noqa: F401

    budgets = {"host_budget": args.host_budget,
               "disk_budget": args.disk_budget}
    rows = []
    for row in _rows(args, budgets):
        rows.append(row)
        print(_line(row), flush=True)
    if args.json:
        tables.write_json(args.json, {"card": args.card, "rows": rows})
    return 1 if any(row["error"] for row in rows) else 0


def _rows(args, budgets):
    for name in args.programs.split(","):
        if name == "llama":
            # 3 GiB for 32 layers, the same multiple for fewer.
            parameters = zygote.run(_parameters, name, args.layers)
            card = place.pages(3 * _GIB * parameters / (12.55 * _GIB))
            for training in (False, True):
                yield _row(name, args.layers, parameters, card, training,
                           budgets)
            continue
        for multiple in args.multiples:
            size, parameters = name, zygote.run(_parameters, name, args.layers)
            if name == "demo" and parameters / multiple < 2 * _DEMO_WORDS:
                size = "demo of 8000 words"
                parameters = zygote.run(_parameters, size, args.layers)
            yield _row(size, args.layers, parameters,
                       place.pages(parameters / multiple + place.PAGE - 1), False, budgets)


def _build(name, layers):
    """The model, its weights address space only, and what it is asked."""
    import torch

    if name.startswith("demo"):
        from stratalloc.demo import job

        model = job.load_model()[0]
        if name != "demo":
            model.resize_token_embeddings(8000)
        return model, (10, 32)
    if name == "plain":
        from tests.system.starved import models

        with torch.device("meta"):
            model = models.Plain(10, 2048, bias=False)
    else:
        from transformers import LlamaConfig
        from transformers import LlamaForCausalLM

        with torch.device("meta"):
            model = LlamaForCausalLM(LlamaConfig(
                hidden_size=4096, intermediate_size=11008,
                num_hidden_layers=layers, num_attention_heads=32,
                num_key_value_heads=32, tie_word_embeddings=False,
                use_cache=False))
    return model.bfloat16().to_empty(device="cpu").eval(), (1, 512)


def _parameters(name, layers):
    from tests.system.starved import models

    return models.parameter_bytes(_build(name, layers)[0])


def _passes(name, layers, card, training, allocator, budgets):
    """What each pass moved and took; the first one follows the loading."""
    import torch

    place.device(card, allocator, **budgets)
    model, shape = _build(name, layers)
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if training:
        shape = 1, 64  # activations do not leave: few, so that it is weights
    found, virtual = [], []
    for _ in range(1 if training else _PASSES):
        before = place.moved()
        with place.virtual_seconds(virtual):
            words = torch.zeros(shape, dtype=torch.long, device="cuda")
            if training:
                model.train()
                model(input_ids=words, labels=words)["loss"].backward()
                optimizer.step()
                optimizer.zero_grad()
            else:
                with torch.no_grad():
                    model(input_ids=words)
            torch.cuda.synchronize()
        after = place.moved()
        found.append({"seconds": virtual[-1], **{
            way: after[way] - before[way] for way in ("out", "in")}})
    return {"passes": found, "faults": place.faults(),
            "peak": torch.cuda.max_memory_allocated()}


def _row(name, layers, parameters, card, training, budgets):
    row = {"program": name + (" step" if training else ""), "card": card,
           "parameters": parameters, "multiple": parameters / card,
           "least": max(0, parameters - card), "error": None}
    try:
        row["native"] = zygote.run(
            _passes, name, layers, 120 * _GIB, training, "native", {})
        row["ours"] = zygote.run(_passes, name, layers, card, training,
                                 "stratalloc", budgets, timeout=1200)
        row["error"] = "; ".join(row["ours"]["faults"]) or None
    except (zygote.Refused, zygote.Died) as error:
        row["error"] = str(error)
        row["trace"] = getattr(error, "trace", None)
    return row


def _line(row):
    text = (f"{'RED ' if row['error'] else ''}{row['program']}: "
            f"{tables.mib(row['parameters'])} MiB on "
            f"{tables.mib(row['card'])} ({row['multiple']:.2f}x), least "
            f"{tables.mib(row['least'])} in")
    if "ours" in row:
        last, native = row["ours"]["passes"][-1], row["native"]["passes"][-1]
        text += (f"; a pass brought {tables.mib(last['in'])} in "
                 f"({last['in'] / row['least']:.2f}x), "
                 f"{tables.mib(last['out'])} out; "
                 f"{last['seconds'] * 1e3:.2f} ms against "
                 f"{native['seconds'] * 1e3:.2f} where it fits")
    return text + (f"\n    {row['error'][:800]}" if row["error"] else "")


if __name__ == "__main__":
    sys.exit(main())
