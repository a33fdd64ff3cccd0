# SPDX-License-Identifier: Apache-2.0
"""A loader that copies the next batch on a stream of its own."""

import torch
import torchvision

model = torchvision.models.resnet50().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
side = torch.cuda.Stream()


def fetch(count):
    with torch.cuda.stream(side):
        return torch.empty(count, 3, 224, 224).to("cuda", non_blocking=True)


following = fetch(32)
for step in range(6):
    torch.cuda.current_stream().wait_stream(side)
    images = following
    images.record_stream(torch.cuda.current_stream())
    following = fetch(24 + 8 * (step % 3))
    loss = model(images).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
