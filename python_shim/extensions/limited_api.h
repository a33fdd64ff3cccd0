// SPDX-License-Identifier: Apache-2.0
// CPython's limited API, as the extensions here use it: of 3.10, the first with
// METH_FASTCALL in it, so that one file serves every Python that torch
// supports. Include it instead of Python.h and before anything else.
#ifndef STRATALLOC_PYTHON_SHIM_EXTENSIONS_LIMITED_API_H_
#define STRATALLOC_PYTHON_SHIM_EXTENSIONS_LIMITED_API_H_

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

namespace stratalloc {

// For the method table, which has one type of function: those of METH_FASTCALL
// have another.
template <typename F>
PyCFunction Erase(F* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// What METH_FASTCALL leaves to the function. False with a TypeError.
inline bool CheckCount(const char* function, Py_ssize_t given,
                       Py_ssize_t expected) {
  if (__builtin_expect(given == expected, 1)) return true;
  PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, %zd given", function,
               expected, given);
  return false;
}

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_EXTENSIONS_LIMITED_API_H_
