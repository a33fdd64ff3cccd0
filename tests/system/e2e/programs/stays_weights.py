# SPDX-License-Identifier: Apache-2.0
"""Weights used in every ordinary way, trained for a step, then evicted.

Between a weight and the product stands what views and re-arranges it, and
autograd goes back through all of that.
"""

import torch
from torch import nn
from torch.nn import functional

import stays

WIDE = 768  # 2.25 MiB in float
CASES = []


def case(function):
    CASES.append(function)
    return function


def parameter(*shape):
    return nn.Parameter(torch.randn(*shape, device="cuda") * 0.01)


class Model(nn.Module):
    """Holds parameters and computes with them inside a module's call."""

    def __init__(self, function, **parameters):
        super().__init__()
        self.function = function
        for name, value in parameters.items():
            if isinstance(value, (list, nn.ParameterList)):
                setattr(self, name, nn.ParameterList(value))
            else:
                setattr(self, name, value)

    def forward(self, x):
        return self.function(self, x)


@case
def without_bias():
    return nn.Sequential(nn.Linear(WIDE, WIDE, bias=False), nn.ReLU(),
                         nn.Linear(WIDE, WIDE, bias=False))


@case
def tied():
    model = nn.Sequential(nn.Linear(WIDE, WIDE, bias=False), nn.ReLU(),
                          nn.Linear(WIDE, WIDE, bias=False))
    model[2].weight = model[0].weight
    return model


@case
def sliced():
    return Model(lambda self, x: (functional.linear(x, self.w[:WIDE])
                                  + functional.linear(x, self.w[WIDE:])),
                 w=parameter(2 * WIDE, WIDE))


@case
def chunked():
    return Model(lambda self, x: sum(functional.linear(x, part)
                                     for part in self.w.chunk(3)),
                 w=parameter(3 * WIDE, WIDE))


@case
def transposed():
    return Model(lambda self, x: x @ self.w.t() @ self.v.transpose(0, 1),
                 w=parameter(WIDE, WIDE), v=parameter(WIDE, WIDE))


@case
def reshaped():
    return Model(lambda self, x: x @ self.w.view(WIDE, WIDE).t(),
                 w=parameter(12, WIDE // 12, WIDE))


@case
def product_of_one_matrix():
    return Model(lambda self, x: x @ self.w, w=parameter(WIDE, WIDE))


@case
def batched_product():
    return Model(lambda self, x: (x.view(-1, 12, WIDE // 12).transpose(0, 1)
                                  @ self.w).sum(0) @ self.v,
                 w=parameter(12, WIDE // 12, WIDE), v=parameter(WIDE, WIDE))


@case
def in_einsum():
    return Model(lambda self, x: torch.einsum(
        "bhd,hde->be", torch.einsum("bi,ihd->bhd", x, self.w), self.v),
        w=parameter(WIDE, 12, WIDE // 12), v=parameter(12, WIDE // 12, WIDE))


@case
def stacked_experts():
    def forward(self, x):
        together = torch.stack(list(self.experts))
        return torch.bmm(x.expand(4, -1, -1), together).sum(0)

    return Model(forward, experts=[parameter(WIDE, WIDE) for _ in range(4)])


@case
def stacked_and_transposed_experts():
    def forward(self, x):
        together = torch.stack([expert.t() for expert in self.experts])
        return torch.bmm(x.expand(4, -1, -1), together).sum(0)

    return Model(forward, experts=[parameter(WIDE, WIDE) for _ in range(4)])


@case
def joined_experts():
    def forward(self, x):
        return functional.linear(x, torch.cat(list(self.experts))).view(
            -1, 4, WIDE).sum(1)

    return Model(forward, experts=[parameter(WIDE, WIDE) for _ in range(4)])


@case
def indexed_experts():
    def forward(self, x):
        chosen = torch.tensor([0, 2, 2], device="cuda")
        return torch.bmm(x.expand(3, -1, -1), self.experts[chosen]).sum(0)

    return Model(forward, experts=parameter(4, WIDE, WIDE))


@case
def one_expert_at_a_time():
    return Model(lambda self, x: sum(x @ self.experts[i] for i in range(3)),
                 experts=parameter(4, WIDE, WIDE))


class Lora(nn.Module):
    """A frozen Linear and two factors beside it."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(WIDE, WIDE, device="cuda")
        self.frozen.requires_grad_(False)
        self.down = nn.Linear(WIDE, 512, bias=False, device="cuda")
        self.up = nn.Linear(512, WIDE, bias=False, device="cuda")

    def forward(self, x):
        return self.frozen(x) + 2.0 * self.up(self.down(x))


@case
def lora():
    return nn.Sequential(Lora(), nn.ReLU(), Lora())


@case
def merged_lora():
    return Model(lambda self, x: functional.linear(
        x, self.w + 2.0 * (self.up @ self.down)),
        w=nn.Parameter(torch.randn(WIDE, WIDE, device="cuda"),
                       requires_grad=False),
        up=parameter(WIDE, 512), down=parameter(512, WIDE))


@case
def sum_of_two():
    return Model(lambda self, x: x @ (self.w.t() + self.up @ self.down),
                 w=parameter(WIDE, WIDE), up=parameter(WIDE, 512),
                 down=parameter(512, WIDE))


@case
def embedding_as_head():
    model = Model(lambda self, x: self.head(self.table(
        x[:, :4].abs().long() % 512).sum(1)),
        table=nn.Embedding(1024, WIDE, device="cuda"),
        head=nn.Linear(WIDE, 1024, bias=False, device="cuda"))
    model.head.weight = model.table.weight
    return model


@case
def weight_normed():
    return nn.utils.parametrizations.weight_norm(
        nn.Linear(WIDE, WIDE, bias=False))


def functional_call():
    """Parameters that belong to no module's call."""
    model = nn.Linear(WIDE, WIDE, bias=False)
    values = {name: parameter(*value.shape)
              for name, value in model.named_parameters()}
    optimizer = torch.optim.AdamW(values.values(), foreach=False)
    x = torch.randn(8, WIDE, device="cuda")
    torch.func.functional_call(model, values, (x,)).square().sum().backward()
    optimizer.step()
    del x
    stays.look("functional_call", values, optimizer)


def functional_gradient():
    """torch.func's gradients, kept by the program."""
    model = nn.Linear(WIDE, WIDE, bias=False, device="cuda")
    values = {name: value.detach() for name, value in model.named_parameters()}
    x = torch.randn(8, WIDE, device="cuda")

    def loss(values):
        return torch.func.functional_call(model, values, (x,)).sum()

    gradients = torch.func.grad(loss)(values)
    del x
    stays.look("functional_gradient", values, gradients)


def train(model, name, autocast=False):
    model = model.to("cuda")
    wanted = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(wanted, foreach=False)
    for _ in range(2):
        optimizer.zero_grad()
        x = torch.randn(8, WIDE, device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        del x, loss
    assert all(p.grad is not None for p in wanted), name
    stays.look(name, model, optimizer)


torch.manual_seed(0)
for make in CASES:
    train(make(), make.__name__)
train(without_bias(), "autocast", autocast=True)
train(in_einsum(), "einsum_autocast", autocast=True)
functional_call()
functional_gradient()
stays.finish()
