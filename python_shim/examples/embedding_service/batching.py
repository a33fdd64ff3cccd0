# SPDX-License-Identifier: Apache-2.0
"""One thread that uses the card, and a bounded queue before it.

Requests that have come while it worked are embedded together. If the card has
no room for them together each is embedded alone, so that only a request that
is too large by itself is refused.
"""

import concurrent.futures
import queue
import threading

import torch

import stratalloc


class RefusedError(Exception):
    """The card has no room for a request; the text says why."""


class Batcher:
    """Calls `embed(texts)` on a thread of its own until close().

    Args:
      embed: a function of a list of texts, that returns a list of as many.
      together: texts that are embedded together, at most; a larger request is
        embedded alone.
      waiting: requests that may wait.
    """

    def __init__(self, embed, together=16, waiting=64):
        self._embed, self._together = embed, together
        self._queue = queue.Queue(waiting)
        self._sentence = None  # of what was refused last
        self._callback = (stratalloc.on_oom(self._refused)
                          if stratalloc.is_enabled() else None)
        self._thread = threading.Thread(target=self._work, name="embedding")
        self._thread.start()

    @property
    def waiting(self):
        return self._queue.qsize()

    def alive(self):
        return self._thread.is_alive()

    def submit(self, texts):
        """A Future of the embeddings. queue.Full: too many wait already."""
        future = concurrent.futures.Future()
        self._queue.put_nowait((texts, future))
        return future

    def close(self):
        """What waits is done; the thread has ended after it."""
        self._queue.put(None)
        self._thread.join()
        if self._callback is not None:
            self._callback.close()

    def _work(self):
        kept = None  # came too late for the batch before
        while True:
            first = kept or self._queue.get()
            if first is None:
                return
            batch, kept, ended = self._more(first)
            batch = [one for one in batch
                     if one[1].set_running_or_notify_cancel()]
            if batch:
                self._answer(batch)
            # Or this thread holds answers while it waits.
            del first, batch
            if ended:
                return

    def _more(self, first):
        """(requests that go together, one that is left, whether it is over)"""
        batch, texts = [first], len(first[0])
        while texts < self._together:
            try:
                following = self._queue.get_nowait()
            except queue.Empty:
                break
            if following is None:
                return batch, None, True
            if texts + len(following[0]) > self._together:
                return batch, following, False
            batch.append(following)
            texts += len(following[0])
        return batch, None, False

    def _answer(self, batch):
        self._sentence = None
        try:
            found = iter(self._embed([text for texts, _ in batch
                                      for text in texts]))
            for texts, future in batch:
                future.set_result([next(found) for _ in texts])
        except torch.OutOfMemoryError as error:
            refused = RefusedError(self._sentence or str(error))
        except Exception as error:  # pylint: disable=broad-exception-caught
            refused = error  # that request's own; the next one is served
        else:
            return
        # Here the error is gone, and with it the frames that held tensors.
        if len(batch) == 1:
            batch[0][1].set_exception(refused)
        else:
            for one in batch:
                self._answer([one])

    def _refused(self, report):
        """Before the exception, on the thread that was refused."""
        self._sentence = report.verdict.sentence
