# SPDX-License-Identifier: Apache-2.0
"""ResNet-50, trained at changing resolutions."""

import torch
import torchvision

model = torchvision.models.resnet50().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for side in (160, 224, 192, 256, 128):
    images = torch.empty(64, 3, side, side, device="cuda")
    labels = torch.zeros(64, dtype=torch.long, device="cuda")
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
