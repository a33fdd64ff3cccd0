# SPDX-License-Identifier: Apache-2.0
"""Sends a tensor of the device to a spawned process; prints what that got."""

import torch
import torch.multiprocessing as mp


def receive(sent, answers):
    try:
        answers.put(str(sent.get().sum().item()))
    except RuntimeError as error:
        answers.put(str(error))


def main():
    context = mp.get_context("spawn")
    sent, answers = context.Queue(), context.Queue()
    process = context.Process(target=receive, args=(sent, answers))
    process.start()
    tensor = torch.ones(1 << 20, device="cuda")
    sent.put(tensor)
    print(answers.get())
    process.join()


if __name__ == "__main__":
    main()
