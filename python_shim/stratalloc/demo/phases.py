# SPDX-License-Identifier: Apache-2.0
"""Starts a phase of the demo in its own process and follows its events."""

import json
import os
import subprocess
import sys
import tempfile
import threading


class Phase:
    """One running phase; `result()` waits for it.

    Its stdout and stderr are kept and shown only if the process dies without
    a result. Leaving a `with` block kills what is still running.
    """

    def __init__(self, name, settings, folder):
        self.name = name
        self.progress = (0, 1)
        self.stage = "starting"
        self.parameter_bytes = 0
        self._result = None
        self._changed = threading.Condition()
        self._out = os.path.join(folder, name + ".embeddings")
        self._log = tempfile.TemporaryFile(dir=folder)
        reader, writer = os.pipe()
        command = [
            sys.executable, "-m", "stratalloc.demo.job", "--phase", name,
            "--device", settings["device"],
            "--gpu-memory", str(settings["gpu_memory"]),
            "--host-budget", str(settings["host_budget"]),
            "--events", str(writer), "--out", self._out]
        for option in ("card", "profile"):
            if settings.get(option):
                command += ["--" + option, settings[option]]
        if settings.get("sabotage") and name == "stratalloc":
            command += ["--sabotage", settings["sabotage"]]
        try:
            self._process = subprocess.Popen(
                command, pass_fds=(writer,), stdin=subprocess.DEVNULL,
                stdout=self._log, stderr=self._log, env=package_environment())
        finally:
            os.close(writer)
        self._thread = threading.Thread(target=self._follow, args=(reader,),
                                        daemon=True)
        self._thread.start()

    @property
    def pid(self):
        return self._process.pid

    def _follow(self, reader):
        with os.fdopen(reader, encoding="utf-8") as events:
            for line in events:
                event = json.loads(line)
                kind = event.pop("event")
                with self._changed:
                    self.stage = kind
                    if kind == "progress":
                        self.progress = (event["done"], event["total"])
                    elif kind == "loaded":
                        self.parameter_bytes = event["parameter_bytes"]
                    elif kind == "result":
                        self._result = event
                    self._changed.notify_all()
        with self._changed:
            self.stage = "ended"
            self._changed.notify_all()

    def wait(self, seconds):
        """Waits for news; False once the phase has ended."""
        with self._changed:
            if self.stage == "ended":
                return False
            self._changed.wait(seconds)
            return True

    def result(self):
        """The phase's result; an {"error"} one if the process died."""
        self._thread.join()
        code = self._process.wait()
        if self._result is not None and code == 0:
            return self._result
        self._log.seek(0)
        text = self._log.read().decode("utf-8", "replace").strip()
        ending = f"signal {-code}" if code < 0 else f"exit code {code}"
        result = dict(self._result or {})
        result.setdefault("error_type", "died")
        result["error"] = f"the process ended with {ending}: {text[-2000:]}"
        return result

    def output(self):
        """What the process printed (warnings of the allocator, mostly)."""
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace").strip()

    def embeddings(self):
        try:
            with open(self._out, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""

    def close(self):
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._thread.join()
        self._log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def package_environment():
    """For child processes: they find this very package, installed or not."""
    environment = dict(os.environ)
    package = os.path.dirname(os.path.dirname(os.path.dirname(
        os.path.abspath(__file__))))
    others = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = (
        package + (os.pathsep + others if others else ""))
    environment.pop("STRATALLOC_CONF", None)
    return environment
