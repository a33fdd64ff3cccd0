# SPDX-License-Identifier: Apache-2.0
"""Records which pages the operators of a PyTorch program use.

    python -m tests.system.planner.record [PROGRAM...]

The programs of programs.py run on the simulated device, with numbers off and
room for everything, on stratalloc's allocator. A TorchDispatchMode sees every
operator, in backward and in optimizers too. Pages are those that may leave the
device: of parameters, buffers, gradients, what an optimizer's step allocates
and what is made outside of forward and backward. Activations are not recorded.
An operator on lists counts as one operator per element, as the allocator runs
it where the lists do not fit.
"""

import contextlib
import sys
import weakref

from tests.system.planner import trace

_EVENTS = 4  # scope events of a module: see tests/system/planner/scope_trace.h


def _is_view(func):
    returns = func._schema.returns
    return bool(returns) and all(
        value.alias_info is not None and not value.alias_info.is_write
        for value in returns)


def _tensors(torch, value):
    if isinstance(value, torch.Tensor):
        return [value] if value.is_cuda else []
    if isinstance(value, (list, tuple)):
        return [found for item in value for found in _tensors(torch, item)]
    return []


class Recorder:
    """Collects events; pages are known by their addresses until the end."""

    def __init__(self, torch, now):
        self._torch = torch
        self._now = now
        self._last = now()
        self._events = []  # (kind, ns, reads, writes) and so on, by storage
        self._storages = {}  # address: number, of live storages
        self._spans = []  # [address, bytes, evictable], by number
        self._scopes = {}
        self._depth = 0
        self.recorder_mode = self._mode()

    def _mode(recorder):
        torch = recorder._torch
        from torch.utils._python_dispatch import TorchDispatchMode

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                kwargs = kwargs or {}
                result = func(*args, **kwargs)
                if not _is_view(func):
                    recorder._operator(func, args, kwargs, result)
                return result

        return Mode()

    def _number(self, tensor):
        """The number of the tensor's storage; and whether it is new."""
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if address == 0 or size == 0:
            return None, False
        if address in self._storages:
            return self._storages[address], False
        number = len(self._spans)
        self._storages[address] = number
        self._spans.append([address, size, self._depth == 0])
        weakref.finalize(storage, self._free, address, number)
        return number, True

    def _free(self, address, number):
        if self._storages.get(address) == number:
            del self._storages[address]
        self._events.append(("f", number))

    def keep(self, *tensors):
        """These tensors' pages may leave the device."""
        for tensor in tensors:
            number, _ = self._number(tensor)
            if number is not None:
                self._spans[number][2] = True

    def _operator(self, func, args, kwargs, result):
        time = self._now()
        spent, self._last = time - self._last, time
        written = {argument.name for argument in func._schema.arguments
                   if argument.alias_info is not None
                   and argument.alias_info.is_write}
        named = list(zip((a.name for a in func._schema.arguments), args))
        named += list(kwargs.items())
        single, lists = [], []
        for name, value in named:
            found = [(tensor, name in written)
                     for tensor in _tensors(self._torch, value)]
            (lists if isinstance(value, (list, tuple)) else single).append(found)
        results = [(tensor, True) for tensor in _tensors(self._torch, result)]
        (lists if isinstance(result, (list, tuple)) else single).append(results)
        single = [pair for found in single for pair in found]
        parts = max([len(found) for found in lists], default=0)
        if not parts or not func._schema.name.startswith(
                ("aten::_foreach", "aten::_fused", "aten::_amp")):
            parts = 1
            single += [pair for found in lists for pair in found]
            lists = []
        for part in range(parts):
            of_part = [found[part] for found in lists if part < len(found)]
            self._use(spent // parts, single + of_part)

    def _use(self, spent, pairs):
        used = {}
        for tensor, is_written in pairs:
            number, is_new = self._number(tensor)
            if number is not None:
                kind = "n" if is_new else "w" if is_written else "r"
                if used.get(number, "r") == "r":
                    used[number] = kind
        self._events.append(("o", spent, tuple(used.items())))

    # -- what the programs call ---------------------------------------------

    def cycle(self):
        self._events.append(("c",))

    @contextlib.contextmanager
    def backward(self):
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    @contextlib.contextmanager
    def step(self, optimizer):
        """What the optimizer allocates may leave the device."""
        self._scope(optimizer, 0)
        yield
        self._scope(optimizer, 1)

    def _scope(self, noun, event):
        scope = self._scopes.setdefault(id(noun), len(self._scopes) + 1)
        self._events.append(("s", scope * _EVENTS + event))

    def add(self, model):
        """Scope events of the model's modules; its pages, and gradients'."""
        def enter(module, _):
            self._depth += 1
            self._scope(module, 0)

        def leave(module, _, output):
            self._depth -= 1
            self._scope(module, 1)
            for tensor in _tensors(self._torch, output):
                if tensor.requires_grad:
                    tensor.register_hook(lambda _: self._scope(module, 2))

        for module in model.modules():
            module.register_forward_pre_hook(enter)
            module.register_forward_hook(leave, always_call=True)
        self.keep(*model.parameters(), *model.buffers())
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(
                    lambda owner: self.keep(owner.grad))

    # -- the text -------------------------------------------------------------

    def text(self, name):
        size = trace.PAGE_BYTES
        spanned = [range(address // size, (address + length - 1) // size + 1)
                   if evictable else range(0)
                   for address, length, evictable in self._spans]
        number, last = {}, None
        for page in sorted({page for span in spanned for page in span}):
            number[page] = 0 if last is None else number[last] + (
                1 if page == last + 1 else 2)
            last = page
        lines, blocks, most = [], {}, 0  # blocks: per page, its live storages
        while self._events and self._events[-1] != ("c",):
            self._events.pop()  # the end of the program frees everything
        for event in self._events:
            if event[0] == "o":
                line, spent = [], event[1]
                kinds = {"r": [], "w": [], "n": []}
                seen = set()
                for storage, kind in event[2]:
                    for page in spanned[storage]:
                        holders = blocks.setdefault(page, set())
                        fresh = not holders
                        holders.add(storage)
                        if page not in seen:
                            seen.add(page)
                            written = "n" if fresh and kind == "n" else (
                                "r" if kind == "r" else "w")
                            kinds[written].append(number[page])
                for kind, numbers in kinds.items():
                    if numbers:
                        line += [kind, trace.runs(numbers)]
                most = max(most, len(blocks))
                lines.append(" ".join(["o", str(spent), *line]))
            elif event[0] == "f":
                freed = []
                for page in spanned[event[1]]:
                    holders = blocks.get(page)
                    if holders is not None:
                        holders.discard(event[1])
                        if not holders:
                            del blocks[page]
                            freed.append(number[page])
                if freed:
                    lines.append("f " + trace.runs(freed))
            else:
                lines.append(" ".join(str(part) for part in event))
        return "\n".join([f"b {name} {most}", *_merged(lines), ""])


def _merged(lines):
    """Operators without pages add their time to the one before."""
    merged = []
    for line in lines:
        parts = line.split(" ")
        if parts[0] == "o" and len(parts) == 2 and merged:
            for index in range(len(merged) - 1, -1, -1):
                before = merged[index].split(" ")
                if before[0] == "o":
                    before[1] = str(int(before[1]) + int(parts[1]))
                    merged[index] = " ".join(before)
                    break
                if before[0] == "c":
                    break
            continue
        merged.append(line)
    return merged


def load():
    """The simulated device with our allocator; returns the time's reader.

    Before torch is imported.
    """
    from stratalloc import simulate
    simulate.load("card", 1, "eager", 0, "h200", None, "off")
    import torch

    import stratalloc
    stratalloc.enable(tiering=True)
    torch.set_num_threads(1)

    def now():
        torch.cuda.synchronize()
        return int(simulate.virtual_time()["seconds"] * 1e9)

    return now


def main(wanted):
    now = load()
    import torch

    from tests.system.planner import programs
    for name in wanted or programs.PROGRAMS:
        recorder = Recorder(torch, now)
        programs.PROGRAMS[name](recorder)
        text = recorder.text(name)
        print(name, text.split("\n", 1)[0], text.count("\n"), "lines",
              trace.write(name, text), "bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
