# SPDX-License-Identifier: Apache-2.0
"""A diffusion UNet at the widths of Stable Diffusion, trained on latents."""

import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    """Two convolutions with the time step added in between."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(32, inputs), nn.SiLU(),
                                   nn.Conv2d(inputs, outputs, 3, padding=1))
        self.time = nn.Linear(1280, outputs)
        self.second = nn.Sequential(nn.GroupNorm(32, outputs), nn.SiLU(),
                                    nn.Conv2d(outputs, outputs, 3, padding=1))
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x, time):
        y = self.first(x) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.second(y)


class Attention(nn.Module):
    """Every place looks at every other one, in 8 heads."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.mix = nn.Conv2d(width, 3 * width, 1)
        self.out = nn.Conv2d(width, width, 1)

    def forward(self, x):
        batch, width, height, breadth = x.shape
        parts = self.mix(self.norm(x)).view(batch, 3, 8, width // 8, -1)
        query, key, value = parts.transpose(3, 4).unbind(1)
        weights = (query @ key.transpose(2, 3)).softmax(-1)
        mixed = (weights @ value).transpose(2, 3)
        return x + self.out(mixed.reshape(batch, width, height, breadth))


class UNet(nn.Module):
    """Four resolutions down and up, attention at all but the largest."""

    def __init__(self, widths=(320, 640, 1280, 1280)):
        super().__init__()
        self.enter = nn.Conv2d(4, widths[0], 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        width = widths[0]
        for index, out in enumerate(widths):
            attention = Attention(out) if index else nn.Identity()
            self.down.append(nn.ModuleList([Residual(width, out), attention]))
            attention = Attention(width) if index else nn.Identity()
            self.up.insert(0, nn.ModuleList(
                [Residual(2 * out, width), attention]))
            width = out
        self.middle = Residual(width, width)
        self.leave = nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, x, time):
        x, saved = self.enter(x), []
        for residual, attention in self.down:
            x = attention(residual(x, time))
            saved.append(x)
            x = functional.avg_pool2d(x, 2)
        x = self.middle(x, time)
        for residual, attention in self.up:
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = attention(residual(torch.cat((x, saved.pop()), 1), time))
        return self.leave(x)


model = UNet().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for count, side in ((4, 64), (2, 96), (8, 48)):
    latents = torch.empty(count, 4, side, side, device="cuda")
    times = torch.empty(count, 1280, device="cuda")
    loss = (model(latents, times) - latents).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
