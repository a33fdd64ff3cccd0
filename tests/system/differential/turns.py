# SPDX-License-Identifier: Apache-2.0
"""Threads that take turns, each on a CUDA stream of its own."""

import queue
import threading

import torch


class Turns:
    """Threads that live as long as the process. One works at a time, and says
    when it is done: what they show depends on the order of calls only."""

    def __init__(self, streams):
        self._calls = []
        self._results = queue.SimpleQueue()
        for stream in streams:
            calls = queue.SimpleQueue()
            self._calls.append(calls)
            threading.Thread(
                target=self._work, args=(stream, calls), daemon=True
            ).start()

    def _work(self, stream, calls):
        torch.cuda.set_stream(stream)
        while True:
            function, arguments = calls.get()
            try:
                result = function(*arguments), None
            except BaseException as error:  # goes to who called
                result = None, error
            self._results.put(result)
            del function, arguments, result  # no tensor outlives its turn

    def call(self, thread, function, *arguments):
        self._calls[thread].put((function, arguments))
        result, error = self._results.get()
        if error is not None:
            raise error
        return result
