# SPDX-License-Identifier: Apache-2.0
"""ResNet-50 whose optimizer changes from SGD to Adam in the middle."""

import torch
import torchvision

model = torchvision.models.resnet50().cuda()
images = torch.empty(32, 3, 224, 224, device="cuda")
labels = torch.zeros(32, dtype=torch.long, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(6):
    if step == 3:
        optimizer = torch.optim.Adam(model.parameters())
        torch.cuda.empty_cache()
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
