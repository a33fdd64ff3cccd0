# SPDX-License-Identifier: Apache-2.0
"""Trains in two workers of a local Ray, which opt in by their environment.

    ray_workers.py FOLDER SETTINGS
"""

import os
import shutil
import sys
import tempfile

import ray

from tests.system.e2e.environments.programs import too_large


@ray.remote(num_gpus=1)
class Worker:
    def train(self, seed, folder):
        import torch

        (gpu,) = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        # Ray hides the others where it finds GPUs by itself.
        index = int(gpu) % torch.cuda.device_count()
        too_large.leave(too_large.of_this_process(seed, f"cuda:{index}"),
                        folder)
        return os.getpid()


def main():
    # Ray's sockets lie there; their names have at most 107 bytes.
    place = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    try:
        ray.init(num_cpus=2, num_gpus=2, include_dashboard=False,
                 _temp_dir=place, runtime_env={"env_vars": {
                     "STRATALLOC": "1", "STRATALLOC_CONF": sys.argv[2]}})
        workers = [Worker.remote() for _ in range(2)]
        found = ray.get([worker.train.remote(seed, sys.argv[1])
                         for seed, worker in enumerate(workers)])
        assert len({os.getpid(), *found}) == 3, found
        ray.shutdown()
    finally:
        shutil.rmtree(place, ignore_errors=True)


main()
