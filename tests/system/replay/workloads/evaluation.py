# SPDX-License-Identifier: Apache-2.0
"""ResNet-50: short epochs of training with an evaluation in between."""

import torch
import torchvision

model = torchvision.models.resnet50().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(2):
    model.train()
    for _ in range(2):
        images = torch.empty(64, 3, 224, 224, device="cuda")
        labels = torch.zeros(64, dtype=torch.long, device="cuda")
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for _ in range(2):
            model(torch.empty(256, 3, 256, 256, device="cuda"))
