# SPDX-License-Identifier: Apache-2.0
"""ResNet-50 and ResNet-101, trained in turn at different resolutions."""

import torch
import torchvision

models = [torchvision.models.resnet50().cuda(),
          torchvision.models.resnet101().cuda()]
optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
for step in range(6):
    model, optimizer = models[step % 2], optimizers[step % 2]
    side = (224, 192)[step % 2]
    images = torch.empty(32 + 8 * step, 3, side, side, device="cuda")
    loss = model(images).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
