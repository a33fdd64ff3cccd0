// SPDX-License-Identifier: Apache-2.0
#include "python_shim/extensions/opaque_uses/operands.h"

namespace stratalloc {
namespace {

PyObject* tensor_type = nullptr;
PyObject* parameter_type = nullptr;
PyObject* disable_overrides = nullptr;  // torch._C.DisableTorchFunction
PyObject* mode_enabled = nullptr;       // is a TorchFunctionMode active?
PyObject* cdata = nullptr;              // "_cdata"
PyObject* flatten = nullptr;            // "__tensor_flatten__"

// Of what somebody's __tensor_flatten__ raised; the interpreter's own
// exceptions (KeyboardInterrupt) are not ours to drop. False: it stays.
bool DropException() {
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0) return false;
  PyErr_Clear();
  return true;
}

}  // namespace

NoOverrides::~NoOverrides() {
  if (guard_ == nullptr) return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyObject* const done =
      PyObject_CallMethod(guard_, "__exit__", "OOO", Py_None, Py_None, Py_None);
  Py_XDECREF(done);
  Py_DECREF(guard_);
  PyErr_Restore(type, value, trace);
}

bool NoOverrides::Begin() {
  if (guard_ != nullptr) return true;
  guard_ = PyObject_CallObject(disable_overrides, nullptr);
  if (guard_ == nullptr) return false;
  PyObject* const done = PyObject_CallMethod(guard_, "__enter__", nullptr);
  Py_XDECREF(done);
  return done != nullptr;
}

bool NoOverrides::BeginForMode() {
  PyObject* const on = PyObject_CallObject(mode_enabled, nullptr);
  if (on == nullptr) return false;
  const bool enabled = on == Py_True;
  Py_DECREF(on);
  return !enabled || Begin();
}

void Operands::Bind(PyObject* tensor, PyObject* parameter, PyObject* disable,
                    PyObject* mode) {
  for (PyObject* kept : {tensor, parameter, disable, mode}) Py_INCREF(kept);
  tensor_type = tensor;
  parameter_type = parameter;
  disable_overrides = disable;
  mode_enabled = mode;
  if (cdata == nullptr) {
    cdata = PyUnicode_InternFromString("_cdata");
    flatten = PyUnicode_InternFromString("__tensor_flatten__");
  }
}

Operands::~Operands() {
  for (PyObject* part : kept_) Py_DECREF(part);
}

bool Operands::Add(PyObject* object, int depth, NoOverrides* overrides) {
  PyTypeObject* const type = Py_TYPE(object);
  if (!PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(tensor_type))) {
    return depth == 0 || AddElements(object, depth - 1, overrides);
  }
  const bool plain = reinterpret_cast<PyObject*>(type) == tensor_type ||
                     reinterpret_cast<PyObject*>(type) == parameter_type;
  if (!plain && !overrides->Begin()) return false;
  PyObject* const address = PyObject_GetAttr(object, cdata);
  if (address == nullptr) return false;
  tensors_.push_back(PyLong_AsVoidPtr(address));
  Py_DECREF(address);
  if (PyErr_Occurred() != nullptr) return false;
  return plain || AddInside(object, depth, overrides);
}

bool Operands::AddInside(PyObject* wrapper, int depth, NoOverrides* overrides) {
  // One that flattens to itself has no end.
  if (Py_EnterRecursiveCall(" in __tensor_flatten__") != 0) {
    return DropException();
  }
  const bool added = AddParts(wrapper, depth, overrides);
  Py_LeaveRecursiveCall();
  return added;
}

bool Operands::AddParts(PyObject* wrapper, int depth, NoOverrides* overrides) {
  PyObject* const method = PyObject_GetAttr(wrapper, flatten);
  if (method == nullptr) return DropException();  // no wrapper
  PyObject* const names_and_rest = PyObject_CallObject(method, nullptr);
  Py_DECREF(method);
  if (names_and_rest == nullptr) return DropException();
  PyObject* const names = PySequence_GetItem(names_and_rest, 0);
  Py_DECREF(names_and_rest);
  const Py_ssize_t count = names == nullptr ? -1 : PySequence_Size(names);
  bool added = count >= 0 || DropException();
  for (Py_ssize_t i = 0; added && i < count; ++i) {
    PyObject* const name = PySequence_GetItem(names, i);
    PyObject* const part =
        name == nullptr ? nullptr : PyObject_GetAttr(wrapper, name);
    Py_XDECREF(name);
    if (part == nullptr) {
      added = DropException();
      continue;
    }
    kept_.push_back(part);
    added = Add(part, depth, overrides);
  }
  Py_XDECREF(names);
  return added;
}

bool Operands::AddElements(PyObject* container, int depth,
                           NoOverrides* overrides) {
  if (PyDict_Check(container) != 0) {
    PyObject* const values = PyDict_Values(container);
    if (values == nullptr) return false;
    kept_.push_back(values);
    return AddElements(values, depth, overrides);
  }
  const bool is_list = PyList_Check(container) != 0;
  if (!is_list && PyTuple_Check(container) == 0) return true;
  for (Py_ssize_t i = 0;; ++i) {
    // Asked each time: a list may change under a subclass's hand.
    if (i >= (is_list ? PyList_Size(container) : PyTuple_Size(container))) {
      return true;
    }
    PyObject* const item =
        is_list ? PyList_GetItem(container, i) : PyTuple_GetItem(container, i);
    if (item == nullptr) return false;
    if (is_list) {  // so may another thread, while the call waits for room
      Py_INCREF(item);
      kept_.push_back(item);
    }
    if (!Add(item, depth, overrides)) return false;
  }
}

}  // namespace stratalloc
