# SPDX-License-Identifier: Apache-2.0
"""Which module owns which tensor: the names of modules, and re-labelling.

A module gets its path when it is first called or moved: the whole tree below
it is walked once and every module in it becomes "ClassName.child.path". The
path is remembered beside the module, never in it: a dict keyed by id() with a
weak reference that takes the entry out, so that pickling, deepcopy,
state_dict and user-defined __eq__ see nothing. A copy is another object and
gets a name of its own ("ClassName#2"), at the latest by a report (`_copies`).

A part that is called or moved before the whole is a root until the whole is
named: then it, and what was named below it, gets its path there, and what it
owns goes with it (its gradients where `.grad` may be read, see below). What has
a path below one parent keeps it when another one is named.

Walking also re-labels: what was loaded before the module existed, or while it
had no path yet, was charged to nobody or to its class; now its storage is
charged to the path. Address and residency do not change.

Parameters, buffers and optimizer state are values of dictionaries: who has read
one under the GIL holds it. A gradient is held by its parameter in C++, and
`p.grad = None` gives the GIL up while the old one dies: a thread that reads
`.grad` then gets a tensor that is gone. So `.grad` is read only where the
program reads it itself, on its thread: by `relabel_tree` and
`relabel_gradients`, in a move, in a step and in watch(). An answer about what
is held never reads it; autograd tells of each gradient that it puts there.

Thread-safety: reads on the hot path (`scopes`) take no lock; everything that
adds takes `_lock`. Weak-reference callbacks run anywhere, even inside that
lock, so they only use single dict and set operations.
"""

import threading
import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensor

from stratalloc._native import stack as _stack
from stratalloc._native import storages as _storages
from stratalloc._native.module_tree import walk
from stratalloc._native.stack import GRADIENT, INPUT, OPTIMIZER_STATE
from stratalloc._ownership import scope_names as _scope_names
from stratalloc._ownership.annotated import Annotated
from stratalloc._ownership.inputs import each_tensor
from stratalloc._ownership.module_tensors import (
    KINDS, class_name, leaves_of, registered, tensors_in, tensors_of,
    wrapped_child)

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class _Ref(weakref.ref):
    """A weak reference to a module, with what to forget when it dies."""

    __slots__ = ("key", "root", "tree", "top", "owned")
    # key: id of the module; root: the root name to give back, or None;
    # tree: number of the tree it is named in; top: whether it is its root;
    # owned: name of a parameter or buffer -> id of the tensor.


class Owners:
    """The names of all live modules and the owners of their tensors."""

    def __init__(self):
        self._native = _stack.functions()
        self._lock = threading.RLock()
        # id(module) -> scope id; the only thing a module call reads.
        self.scopes = {}
        self._modules = {}  # id(module) -> _Ref
        # id(tensor) -> (_Ref of its module, name in it, scope, category).
        # No weak reference to the tensor: torch.utils.swap_tensors, which
        # .to() uses for wrapper subclasses, refuses tensors that have one.
        self._tensors = {}
        self._paths = {}  # scope id -> path, of module scopes only
        self._by_scope = {}  # scope id -> _Ref of the module named last
        self._roots = set()  # names of live roots
        self._trees = 0  # how many were named
        self.root_scopes = set()  # scope ids of roots
        self.unattributed = None  # the scope of compiled backwards, once one is
        self._class_scopes = {}  # class name -> scope id
        # id -> module that was copied or unpickled, or holds one, and that
        # nobody has called yet.
        self._copies = weakref.WeakValueDictionary()
        # Called with {old path: new path} of modules that have moved.
        self.on_moved = lambda paths: None
        self.on_device = _is_cuda
        self.annotated = Annotated()

    def reset_lock(self):
        """After fork: a thread that is gone may have held it."""
        self._lock = threading.RLock()

    # ---- names ----------------------------------------------------------

    def class_scope(self, module):
        """The scope of a module that has no path yet: its class's name."""
        name = class_name(module)
        scope = self._class_scopes.get(name)
        if scope is None:
            scope = self._class_scopes[name] = self._native.intern(
                _scope_names.storable(name))
        return scope

    def name_tree(self, root, again=False, inside=True):
        """Names `root` and every module below it; returns its scope.

        Modules that have a name below a parent keep it. Re-labels the tensors
        of those that get one. again: of a root that has a name, those added
        since, too. inside: below the module that runs on this thread.
        """
        with self._lock:
            scope = self.scopes.get(id(root))
            if scope is not None and not again:
                return scope
            inner, prefix = root, ""
            while (child := wrapped_child(inner)) is not None:
                prefix += child + "."
                inner = inner._modules[child]
            if self._is_compiled_backwards(inner):
                for _, module in walk(root):
                    if id(module) not in self.scopes:
                        self._remember(module, self._native.name(
                            self.unattributed), None, None, False)
                return self.scopes[id(root)]
            base, unique, tree = self._base(inner, inside)
            walked = list(walk(root))
            roots = self._roots_below(walked, tree)
            moved = {}
            for path, module in walked:
                ref = self._modules.get(id(module))
                if ref is not None and ref.tree not in roots:
                    continue
                if prefix.startswith(path + ".") or not path:
                    full = base
                else:
                    path = path.removeprefix(prefix)
                    full = f"{base}.{path}" if path else base
                if ref is not None:
                    old = self._paths[self.scopes[id(module)]]
                    self._move(ref, full, tree)
                    moved[old] = self._paths[self.scopes[id(module)]]
                else:
                    # The wrapper and the model inside are one root; the name
                    # is free again when the model is gone.
                    self._remember(module, full, base if unique and
                                   module is inner else None, tree,
                                   module is inner and tree == self._trees)
                self._label_own(module)
            if scope is None:
                self.root_scopes.add(self.scopes[id(root)])
            if moved:
                self.on_moved(moved)
            return self.scopes[id(root)]

    def _roots_below(self, walked, tree):
        """Trees of the roots among these modules, but for `tree` itself."""
        refs = [self._modules.get(id(module)) for _, module in walked]
        return {ref.tree for ref in refs
                if ref is not None and ref.top and ref.tree != tree}

    def copied(self, module):
        """`module` was copied or unpickled: a report names its tree."""
        if id(module) not in self._modules:
            self._copies[id(module)] = module

    def joined(self, module, child):
        """`child` becomes a child of `module`, whose tree a copy is in then."""
        if child is not None and id(child) in self._copies:
            self.copied(module)

    def _name_copies(self):
        """Names the trees of copies that have memory on a device."""
        copies = [ref() for ref in self._copies.valuerefs()]
        copies = [module for module in copies if module is not None]
        below = {id(child) for module in copies for child in list(
            (module.__dict__.get("_modules") or {}).values())}
        for module in copies:
            if id(module) in self._modules:
                self._copies.pop(id(module), None)
            elif id(module) not in below and any(
                    self.on_device(tensor) for _, part in walk(module)
                    for tensor in tensors_of(part)):
                self.name_tree(module, inside=False)

    def _is_compiled_backwards(self, module):
        """Whether this is code that was generated for a compiled backward.

        Such a graph is first called while one runs; so may a program's own
        modules be, by a hook, but these are no generated code.
        """
        return (self.unattributed is not None
                and isinstance(module, torch.fx.GraphModule)
                and self._native.current()[0] == self.unattributed)

    def _base(self, inner, inside):
        """The path of a tree's root, whether it must be given back, and the
        number of the tree it is in."""
        known = self.scopes.get(id(inner))
        if known is not None:
            return self._paths[known], False, self._modules[id(inner)].tree
        self._trees += 1
        tree = self._trees
        name = class_name(inner)
        running = self._native.current()[0]
        outer = self._paths.get(running) if inside else None
        if outer is not None and running != self.unattributed:
            # Inside another module: a child added after that one was named,
            # or a module that is nobody's child.
            path = self._path_below(running, inner)
            if path:
                tree = self._by_scope[running].tree
            name = f"{outer}.{path or name}"
        if inner.__dict__.get("_is_replica"):
            # DataParallel makes new ones for each forward.
            return name, False, tree
        number, base = 1, name
        while base in self._roots:
            number += 1
            base = f"{name}#{number}"
        self._roots.add(base)
        return base, True, tree

    def _path_below(self, scope, inner):
        ref = self._by_scope.get(scope)
        running = ref() if ref is not None else None
        if running is not None:
            for path, module in walk(running):
                if module is inner:
                    return path
        return None

    def _remember(self, module, path, root, tree, top):
        key = id(module)
        ref = _Ref(module, self._forget_module)
        ref.key, ref.root, ref.owned = key, root, {}
        ref.tree, ref.top = tree, top
        scope = self._scope_at(path, ref)
        self._modules[key] = ref
        self.scopes[key] = scope  # last: a reader sees a finished entry

    def _scope_at(self, path, ref):
        scope = self._native.intern(_scope_names.storable(path))
        self._paths[scope] = self._native.name(scope)  # as far as it was kept
        self._by_scope[scope] = ref
        return scope

    def _move(self, ref, path, tree):
        """A module that was named before what it is a part of."""
        scope = self._scope_at(path, ref)
        for key in list(ref.owned.values()):
            entry = self._tensors.get(key)
            if entry is not None and entry[0] is ref:
                self._tensors[key] = (ref, entry[1], scope, entry[3])
        self.scopes[ref.key] = scope
        ref.tree, ref.top = tree, False
        name, ref.root = ref.root, None
        if name is not None:
            self._roots.discard(name)

    def _forget_module(self, ref):
        if self._modules.get(ref.key) is ref:
            self.scopes.pop(ref.key, None)
            self._modules.pop(ref.key, None)
        for key in ref.owned.values():
            entry = self._tensors.get(key)
            if entry is not None and entry[0] is ref:
                self._tensors.pop(key, None)
        if ref.root is not None:
            self._roots.discard(ref.root)

    def names(self):
        """Path -> scope id of every live named module, in naming order."""
        with self._lock:
            scopes = [self.scopes.get(key) for key in list(self._modules)]
            return {self._paths[scope]: scope for scope in scopes
                    if scope is not None}

    # ---- tensors --------------------------------------------------------

    def register(self, module, name, tensor, category):
        """`tensor` becomes the parameter or buffer `name` of `module`."""
        ref = self._modules.get(id(module))
        if ref is None:
            # Not named yet: charged to the class until it is.
            if self.on_device(tensor):
                self.relabel(tensor, self.class_scope(module), category)
            return
        with self._lock:
            self._own(ref, name, tensor, category)

    def register_all(self, module):
        """What a copied or unpickled module came with: no hook tells of it."""
        for kind, category in KINDS:
            tensors = module.__dict__.get(kind) or {}
            for name, tensor in list(tensors.items()):
                if isinstance(tensor, torch.Tensor):
                    self.register(module, name, tensor, category)

    def owner(self, tensor):
        """The scope id of the module that owns this tensor, or None."""
        entry = self._entry(tensor)
        return None if entry is None else entry[2]

    def _entry(self, tensor):
        """What is remembered, unless another tensor has this id now."""
        entry = self._tensors.get(id(tensor))
        if entry is None:
            return None
        module, name = entry[0](), entry[1]
        if module is None:
            return None
        return entry if registered(module, name) is tensor else None

    def _own(self, ref, name, tensor, category):
        """Remembers the first owner (tied weights keep it) and re-labels."""
        entry = self._entry(tensor)
        if entry is None:
            key = id(tensor)
            self._tensors.pop(ref.owned.get(name), None)
            ref.owned[name] = key
            entry = (ref, name, self.scopes[ref.key], category)
            self._tensors[key] = entry
        self.relabel(tensor, entry[2], entry[3])

    def _label_own(self, module):
        ref = self._modules[id(module)]
        # Not parameters(recurse=False): subclasses override it.
        for kind, category in KINDS:
            tensors = module.__dict__.get(kind) or {}
            for name, tensor in list(tensors.items()):
                if isinstance(tensor, torch.Tensor):
                    self._own(ref, name, tensor, category)

    def named_tensors(self):
        """[(owner, name, category, tensor)] of parameters and buffers.

        Each tensor once, under its first owner.
        """
        with self._lock:
            self._name_copies()
            found = []
            for ref in list(self._modules.values()):
                module = ref()
                if module is None:  # not its truth: that asks for its length
                    continue
                for name, key in list(ref.owned.items()):
                    entry = self._tensors.get(key)
                    if entry is None or entry[0] is not ref:
                        continue
                    tensor = registered(module, name)
                    if tensor is None or id(tensor) != key:
                        continue
                    found.append((self._paths[entry[2]], name, entry[3],
                                  tensor))
            return found

    def relabel_tree(self, root):
        """Re-labels everything that the named modules below `root` own.

        For the thread that the program reads their gradients on.
        """
        with self._lock:
            for _, module in walk(root):
                if id(module) in self.scopes:
                    self._label_own(module)
                    self.relabel_gradients(leaves_of(module))

    def relabel_all(self):
        """Re-labels parameters and buffers of all named modules.

        Names copies first. Returns how many modules were looked at.
        """
        with self._lock:
            self._name_copies()
            modules = [ref() for ref in list(self._modules.values())]
            modules = [module for module in modules if module is not None]
            for module in modules:
                self._label_own(module)
            return len(modules)

    def relabel_gradients(self, parameters):
        """Charges each .grad to its parameter's owner; returns the strays.

        For the thread that the program reads these gradients on.
        A stray is a parameter on the device whose owner is unknown.
        """
        strays = 0
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None or not self.on_device(gradient):
                continue
            scope = self.owner(parameter)
            if scope is None:
                strays += 1
            else:
                self.relabel(gradient, scope, GRADIENT)
        return strays

    def relabel_state(self, parameter, tensors):
        """Charges optimizer state of `parameter` to its owner, if known."""
        scope = self.owner(parameter)
        if scope is None:
            return
        for tensor in tensors_in(tensors):
            self.relabel(tensor, scope, OPTIMIZER_STATE)

    def adopt(self, scope, values):
        """What enters a root module is its input, if it is nobody's yet."""
        each_tensor(values, lambda tensor: self._adopt(scope, tensor))

    def _adopt(self, scope, tensor):
        if not tensor.is_cuda or isinstance(tensor, FakeTensor):
            return
        try:
            storages = _storages.of(tensor)
        except (TypeError, RuntimeError):
            return  # it has no memory, or nobody can tell where
        for _, address, size in storages:
            if size:
                self._native.adopt(address, scope, INPUT)

    def relabel(self, tensor, scope, category):
        """Moves the charge of the tensor's storage; False if it has none.

        Tensors on the CPU, fake tensors, tensors of another allocator and what
        was annotated are left alone.
        """
        if not self.on_device(tensor):
            return False
        if type(tensor) not in _PLAIN:
            if isinstance(tensor, FakeTensor):
                return False  # asking for its address is an error or a warning
            parts = _storages.parts(tensor)
            if parts is not None:
                return any([self.relabel(part, scope, category)
                            for part in parts])
        if tensor.is_quantized:  # scales of channels have storages of their own
            return self._relabel_inside(tensor, scope, category)
        try:
            storage = tensor.untyped_storage()
            address, size = storage.data_ptr(), storage.nbytes()
        except (RuntimeError, ValueError):
            return self._relabel_inside(tensor, scope, category)
        if not address or not size or self.annotated.has(storage):
            return False
        return self._native.relabel(address, size, scope, category)

    def _relabel_inside(self, tensor, scope, category):
        """Of a tensor with no storage of its own, or others beside it."""
        try:
            storages = _storages.of(tensor)
        except (TypeError, RuntimeError):
            # Functional and uninitialised (lazy) tensors: no bytes anywhere.
            return False
        return any([self._native.relabel(address, size, scope, category)
                    for _, address, size in storages if size])


def _is_cuda(tensor):
    return tensor.is_cuda
