// SPDX-License-Identifier: Apache-2.0
// The tensors among the arguments of a call that no operator shows, as the
// bridge wants them (TensorImpl*):
//
//   tensors, and those inside a wrapper subclass (__tensor_flatten__), again
//   and again, whose kernels are launched on what is inside;
//   the same in lists, tuples and dicts, three deep.
//
// Plain tensors come first in every question that is asked: they are what
// nearly every argument is. Nobody's __torch_function__ is asked for an
// address.
//
// Errors: Add() is false with a Python exception set. A __tensor_flatten__ that
// raises hides what is inside it from us, and is no error of the call.
//
// With the GIL. Lifetime: the tensors inside wrappers are kept until its end;
// whatever else was added, the caller keeps.
#ifndef STRATALLOC_PYTHON_SHIM_EXTENSIONS_OPAQUE_USES_OPERANDS_H_
#define STRATALLOC_PYTHON_SHIM_EXTENSIONS_OPAQUE_USES_OPERANDS_H_

#include <vector>

#include "python_shim/extensions/limited_api.h"  // before any standard header

namespace stratalloc {

// While it lives nobody's __torch_function__ is called, once it was begun.
class NoOverrides {
 public:
  ~NoOverrides();
  bool Begin();         // for subclasses
  bool BeginForMode();  // if a TorchFunctionMode is active

 private:
  PyObject* guard_ = nullptr;
};

class Operands {
 public:
  // What is needed of torch; kept until the process ends. Before any other.
  static void Bind(PyObject* tensor, PyObject* parameter,
                   PyObject* disable_overrides, PyObject* mode_enabled);
  ~Operands();

  bool Add(PyObject* object, NoOverrides* overrides) {
    return Add(object, kDepth, overrides);
  }
  const std::vector<const void*>& tensors() const { return tensors_; }
  int count() const { return static_cast<int>(tensors_.size()); }

 private:
  // Whoever nests deeper nests what is no argument list.
  static constexpr int kDepth = 3;

  bool Add(PyObject* object, int depth, NoOverrides* overrides);
  bool AddInside(PyObject* wrapper, int depth, NoOverrides* overrides);
  bool AddParts(PyObject* wrapper, int depth, NoOverrides* overrides);
  bool AddElements(PyObject* container, int depth, NoOverrides* overrides);

  std::vector<const void*> tensors_;
  std::vector<PyObject*> kept_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_EXTENSIONS_OPAQUE_USES_OPERANDS_H_
