# SPDX-License-Identifier: Apache-2.0
"""ResNet-50 in bfloat16 by autocast."""

import torch
import torchvision

model = torchvision.models.resnet50().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for count in (64, 96, 128, 64):
    images = torch.empty(count, 3, 224, 224, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(images).float().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
