# SPDX-License-Identifier: Apache-2.0
"""A service that embeds texts, on a card that may be smaller than its model.

    STRATALLOC=1 STRATALLOC_CONF=gpu_limit:44MiB python service.py --port 8000

It is an ordinary program of FastAPI and PyTorch: nothing in it moves weights.
Of stratalloc it takes the metrics and, for a request that is refused, why.
"""

import argparse
import asyncio
import contextlib
import queue
import signal
import sys
import time
from typing import Annotated

import fastapi
from fastapi import responses
import prometheus_client
from prometheus_client import process_collector
import pydantic
import torch
import uvicorn

import batching
import model
import stratalloc

MOST_TEXTS = 32  # of a request
MOST_CHARACTERS = 2000  # of a text
MOST_BYTES = 1 << 20  # of a request's body, which is read before it is checked

Text = Annotated[str, pydantic.StringConstraints(
    min_length=1, max_length=MOST_CHARACTERS)]


class Texts(pydantic.BaseModel):
    texts: Annotated[list[Text], pydantic.Field(
        min_length=1, max_length=MOST_TEXTS)]


class Embeddings(pydantic.BaseModel):
    embeddings: list[list[float]]


class _Metrics:
    """The service's own numbers, the process's, and stratalloc's."""

    def __init__(self):
        self.registry = prometheus_client.CollectorRegistry()
        process_collector.ProcessCollector(registry=self.registry)
        self.registry.register(stratalloc.metrics_collector())
        self.seconds = prometheus_client.Histogram(
            "embedding_request_seconds", "Time from a request to its answer.",
            ["status"], registry=self.registry)


def _refusal(status, text):
    return responses.JSONResponse({"detail": text}, status)


def create_app(waiting=64):
    """The application; the model is loaded when the server starts."""
    metrics, state = _Metrics(), {}

    @contextlib.asynccontextmanager
    async def lifespan(_):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        embedder = model.Embedder(device)
        state["about"] = {"device": device,
                          "parameter_bytes": embedder.parameter_bytes}
        state["batcher"] = batching.Batcher(embedder, waiting=waiting)
        yield
        await asyncio.to_thread(state["batcher"].close)

    app = fastapi.FastAPI(title="embedding service", lifespan=lifespan)

    @app.middleware("http")
    async def bounded(request, following):
        length = request.headers.get("content-length", "")
        if request.method == "POST" and not length.isdecimal():
            return _refusal(411, "say the body's Content-Length")
        if length.isdecimal() and int(length) > MOST_BYTES:
            return _refusal(413, f"a body has at most {MOST_BYTES} bytes")
        return await following(request)

    @app.post("/embed")
    async def embed(asked: Texts) -> Embeddings:
        began, status = time.monotonic(), 500
        try:
            found = await asyncio.wrap_future(
                state["batcher"].submit(asked.texts))
            status = 200
        except queue.Full:
            status = 503
            raise fastapi.HTTPException(
                503, f"{waiting} requests wait already: ask again later",
                {"Retry-After": "1"}) from None
        except batching.RefusedError as refused:
            status = 503
            raise fastapi.HTTPException(
                503, f"{refused} Send fewer or shorter texts at once."
            ) from None
        finally:
            metrics.seconds.labels(status).observe(time.monotonic() - began)
        return Embeddings(embeddings=found)

    @app.get("/health")
    async def health(answer: fastapi.Response):
        alive = state["batcher"].alive()
        answer.status_code = 200 if alive else 503
        return {"status": "ok" if alive else "the card's thread has ended",
                "waiting": state["batcher"].waiting, **state["about"]}

    @app.get("/metrics")
    def told():
        return fastapi.Response(
            prometheus_client.generate_latest(metrics.registry),
            media_type=prometheus_client.CONTENT_TYPE_LATEST)

    return app


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--waiting", type=int, default=64,
                        help="requests that may wait (64)")
    args = parser.parse_args()
    # uvicorn ends what it has begun, and then hands the signal on.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    uvicorn.run(create_app(args.waiting), host=args.host, port=args.port,
                access_log=False)


if __name__ == "__main__":
    main()
