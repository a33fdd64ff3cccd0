// SPDX-License-Identifier: Apache-2.0
// The Python extension `stratalloc._native._scopes`: scope push and pop for the
// wrapper of nn.Module.__call__, where a ctypes call (about 400 ns) would cost
// more than the module call it measures.
//
// It holds no state: the stack is the core's, thread-local, and ids are plain
// integers.
//
// The GIL: push, enter, leave, pop, depth, current and recategorize keep it; a
// scope listener therefore must not wait for copies, I/O or another thread.
// intern, name, owned, relabel and adopt release it around the core, which
// takes locks.
//
// Errors: a wrong number or type of arguments is a TypeError, an id that does
// not fit its type an OverflowError, a category or lifetime that does not
// exist a ValueError. Nothing else can fail.
#include <cstdint>
#include <limits>

#include "allocator/base/ids.h"
#include "python_shim/c_api/c_api.h"
#include "python_shim/extensions/limited_api.h"

namespace {

using stratalloc::CheckCount;
using stratalloc::Erase;

bool ParseScope(PyObject* object, std::uint32_t* scope) {
  const unsigned long value = PyLong_AsUnsignedLong(object);
  if (__builtin_expect(value <= std::numeric_limits<std::uint32_t>::max(), 1)) {
    *scope = static_cast<std::uint32_t>(value);
    return true;
  }
  // The error value of PyLong_AsUnsignedLong is above the limit, too.
  if (!PyErr_Occurred()) {
    PyErr_Format(PyExc_OverflowError, "scope id %lu is above 2**32 - 1", value);
  }
  return false;
}

// An enum's value in [lowest, count).
bool ParseSmall(PyObject* object, const char* what, long lowest, long count,
                int* out) {
  const long value = PyLong_AsLong(object);
  if (__builtin_expect(value >= lowest && value < count, 1)) {
    // -1 is PyLong_AsLong's error value and relabel's "keep the category".
    if (value != -1 || !PyErr_Occurred()) {
      *out = static_cast<int>(value);
      return true;
    }
    return false;
  }
  if (!PyErr_Occurred()) {
    PyErr_Format(PyExc_ValueError, "%s %ld is not in %ld..%ld", what, value,
                 lowest, count - 1);
  }
  return false;
}

PyObject* Push(PyObject*, PyObject* const* args, Py_ssize_t count) {
  std::uint32_t scope;
  int category;
  int lifetime;
  if (!CheckCount("push", count, 3) || !ParseScope(args[0], &scope) ||
      !ParseSmall(args[1], "category", 0, stratalloc::kCategories, &category) ||
      !ParseSmall(args[2], "lifetime", 0, stratalloc::kLifetimeClasses,
                  &lifetime)) {
    return nullptr;
  }
  stratalloc_scope_push(scope, category, lifetime);
  Py_RETURN_NONE;
}

PyObject* Enter(PyObject*, PyObject* id) {
  std::uint32_t scope;
  if (!ParseScope(id, &scope)) return nullptr;
  return PyLong_FromLong(stratalloc_scope_enter_module(scope));
}

PyObject* Leave(PyObject*, PyObject* below) {
  const long count = PyLong_AsLong(below);
  if (count == -1 && PyErr_Occurred()) return nullptr;
  if (count < 0 || count > std::numeric_limits<int>::max()) {
    PyErr_Format(PyExc_ValueError, "%ld is no number of frames", count);
    return nullptr;
  }
  stratalloc_scope_leave_module(static_cast<int>(count));
  Py_RETURN_NONE;
}

PyObject* Pop(PyObject*, PyObject*) {
  return PyBool_FromLong(stratalloc_scope_pop());
}

PyObject* Depth(PyObject*, PyObject*) {
  return PyLong_FromLong(stratalloc_scope_depth());
}

PyObject* Current(PyObject*, PyObject*) {
  int category = 0;
  int lifetime = 0;
  const std::uint32_t scope = stratalloc_scope_current(&category, &lifetime);
  return Py_BuildValue("(Iii)", static_cast<unsigned int>(scope), category,
                       lifetime);
}

PyObject* Recategorize(PyObject*, PyObject* const* args, Py_ssize_t count) {
  std::uint32_t scope;
  int category;
  if (!CheckCount("recategorize", count, 2) || !ParseScope(args[0], &scope) ||
      !ParseSmall(args[1], "category", 0, stratalloc::kCategories, &category)) {
    return nullptr;
  }
  return PyBool_FromLong(stratalloc_scope_recategorize(scope, category));
}

PyObject* Intern(PyObject*, PyObject* path) {
  Py_ssize_t bytes = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(path, &bytes);
  if (text == nullptr) return nullptr;
  for (Py_ssize_t i = 0; i < bytes; ++i) {
    if (text[i] != '\0') continue;
    PyErr_SetString(PyExc_ValueError, "a scope path cannot hold a NUL");
    return nullptr;
  }
  std::uint32_t scope;
  // `text` is cached in `path`, which the caller keeps alive.
  Py_BEGIN_ALLOW_THREADS;
  scope = stratalloc_scope_intern(text);
  Py_END_ALLOW_THREADS;
  return PyLong_FromUnsignedLong(scope);
}

PyObject* Name(PyObject*, PyObject* id) {
  std::uint32_t scope;
  if (!ParseScope(id, &scope)) return nullptr;
  char* text;
  Py_BEGIN_ALLOW_THREADS;
  text = stratalloc_scope_name(scope);
  Py_END_ALLOW_THREADS;
  if (text == nullptr) return PyErr_NoMemory();
  PyObject* const name = PyUnicode_FromString(text);
  stratalloc_string_free(text);
  return name;
}

PyObject* Owned(PyObject*, PyObject* id) {
  std::uint32_t scope;
  if (!ParseScope(id, &scope)) return nullptr;
  std::uint64_t owned;
  Py_BEGIN_ALLOW_THREADS;
  owned = stratalloc_scope_owned(scope);
  Py_END_ALLOW_THREADS;
  return PyLong_FromUnsignedLongLong(owned);
}

PyObject* Relabel(PyObject*, PyObject* const* args, Py_ssize_t count) {
  std::uint32_t scope;
  int category;
  if (!CheckCount("relabel", count, 4)) return nullptr;
  const unsigned long long address = PyLong_AsUnsignedLongLong(args[0]);
  if (PyErr_Occurred()) return nullptr;
  const unsigned long long bytes = PyLong_AsUnsignedLongLong(args[1]);
  if (PyErr_Occurred()) return nullptr;
  if (!ParseScope(args[2], &scope) ||
      !ParseSmall(args[3], "category", -1, stratalloc::kCategories,
                  &category)) {
    return nullptr;
  }
  int code;
  Py_BEGIN_ALLOW_THREADS;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): Python keeps addresses as ints.
  code = stratalloc_relabel(reinterpret_cast<const void*>(address), bytes,
                            scope, category);
  Py_END_ALLOW_THREADS;
  return PyBool_FromLong(code == 0);
}

PyObject* Adopt(PyObject*, PyObject* const* args, Py_ssize_t count) {
  std::uint32_t scope;
  int category;
  if (!CheckCount("adopt", count, 3)) return nullptr;
  const unsigned long long address = PyLong_AsUnsignedLongLong(args[0]);
  if (PyErr_Occurred()) return nullptr;
  if (!ParseScope(args[1], &scope) ||
      !ParseSmall(args[2], "category", 0, stratalloc::kCategories, &category)) {
    return nullptr;
  }
  int code;
  Py_BEGIN_ALLOW_THREADS;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): Python keeps addresses as ints.
  code =
      stratalloc_adopt(reinterpret_cast<const void*>(address), scope, category);
  Py_END_ALLOW_THREADS;
  return PyBool_FromLong(code == 0);
}

PyMethodDef kMethods[] = {
    {"push", Erase(Push), METH_FASTCALL,
     "push(scope_id, category, lifetime)\n\n"
     "Puts a frame on this thread's scope stack. Pair with pop()."},
    {"enter", Enter, METH_O,
     "enter(scope_id) -> int\n\n"
     "The frame of a module's call: push(scope_id, ACTIVATION, TRANSIENT), "
     "and\n"
     "inside of a backward node a recomputation. Returns how many frames are\n"
     "below it, for leave()."},
    {"leave", Leave, METH_O,
     "leave(below)\n\n"
     "Pops what enter() pushed and what is left above it: as many frames stay\n"
     "as it returned."},
    {"pop", Pop, METH_NOARGS,
     "pop() -> bool\n\n"
     "Takes the top frame off; False (and no effect) if the stack is empty."},
    {"depth", Depth, METH_NOARGS,
     "depth() -> int\n\n"
     "How many frames this thread's stack has."},
    {"current", Current, METH_NOARGS,
     "current() -> (scope_id, category, lifetime)\n\n"
     "The frame on top of this thread's stack; (0, 0, 0) if it is empty."},
    {"recategorize", Erase(Recategorize), METH_FASTCALL,
     "recategorize(scope_id, category) -> bool\n\n"
     "What the frame on top allocates from now on is of this category; False\n"
     "(and no effect) if it is not this scope's."},
    {"intern", Intern, METH_O,
     "intern(path) -> int\n\n"
     "The id of a scope path, the same for the same path. '' is 0."},
    {"name", Name, METH_O,
     "name(scope_id) -> str\n\n"
     "The path of an id; '(no scope)' for 0."},
    {"owned", Owned, METH_O,
     "owned(scope_id) -> int\n\n"
     "The bytes that this scope owns, on all devices and tiers."},
    {"relabel", Erase(Relabel), METH_FASTCALL,
     "relabel(address, bytes, scope_id, category) -> bool\n\n"
     "Moves the charge of the device block(s) holding these bytes; category\n"
     "-1 keeps it. False if they are not in a block of ours."},
    {"adopt", Erase(Adopt), METH_FASTCALL,
     "adopt(address, scope_id, category) -> bool\n\n"
     "Charges the device block that holds this address, if nobody pays for it\n"
     "yet: it was made outside of any scope. False otherwise."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {
    PyModuleDef_HEAD_INIT,
    "_scopes",
    "Scope push and pop of libstratalloc.so, at the speed of a C call.",
    0,
    kMethods,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__scopes(void) { return PyModuleDef_Init(&kModule); }
