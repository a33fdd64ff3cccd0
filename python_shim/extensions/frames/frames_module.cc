// SPDX-License-Identifier: Apache-2.0
// The Python extension `stratalloc._native._frames`: finds the line of user
// code that a thread runs (user_line.h), for mallocs that are sampled, and its
// whole stack (call_stack.h).
//
//   begin(libraries, package)   the core asks from now on
//   end()              nobody asks any more, and nobody is on the way
//   line()             what would be found, for tests: None if there is none
//
// The GIL: the core asks without a lock of its own, so that to wait for the GIL
// stops nobody who has it. Only a thread that Python knows takes it, since any
// other has no frame. After end() nobody does: then the interpreter may be
// finalised, where to take the GIL never returns. It waits, without the GIL,
// for those that passed the gate before, who want nothing else.
//
// Errors: begin() raises TypeError of what is no sequence of str. Otherwise
// none. After a fork the gate is shut in the child.
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "python_shim/c_api/c_api.h"
#include "python_shim/extensions/frames/call_stack.h"
#include "python_shim/extensions/frames/user_line.h"
#include "python_shim/extensions/limited_api.h"

namespace {

using stratalloc::CallStack;
using stratalloc::FindUserLine;
using stratalloc::PythonFrame;

std::atomic<bool> open{false};
std::atomic<int> inside{0};  // threads past the gate

void Leave() {
  if (inside.fetch_sub(1) == 1 && !open.load()) inside.notify_all();
}

// What `find` finds under the GIL, 0 where nobody may take it.
template <typename F>
auto Inside(const F& find) -> decltype(find()) {
  if (PyGILState_GetThisThreadState() == nullptr) return 0;
  inside.fetch_add(1);
  decltype(find()) found = 0;
  if (open.load()) {
    const PyGILState_STATE state = PyGILState_Ensure();
    found = find();
    PyGILState_Release(state);
  }
  Leave();
  return found;
}

// Of c_api.h.
int FindLine(char* text, int room) {
  return Inside([=] { return FindUserLine(text, room); });
}
std::uint32_t FindStack() { return Inside(&CallStack::Find); }

PyObject* Begin(PyObject*, PyObject* arguments) {
  PyObject* libraries = nullptr;
  const char* package = nullptr;
  if (PyArg_ParseTuple(arguments, "O|s", &libraries, &package) == 0 ||
      !PythonFrame::SetLibraries(libraries, package)) {
    return nullptr;
  }
  CallStack::Forget();
  static const int once = pthread_atfork(nullptr, nullptr, [] {
    open.store(false);
    inside.store(0);  // whoever was inside is not in this process
  });
  static_cast<void>(once);
  open.store(true);
  stratalloc_find_sites(&FindLine, &FindStack);
  Py_RETURN_NONE;
}

PyObject* End(PyObject*, PyObject*) {
  stratalloc_find_sites(nullptr, nullptr);
  open.store(false);
  Py_BEGIN_ALLOW_THREADS;
  for (int some = inside.load(); some > 0; some = inside.load()) {
    inside.wait(some);
  }
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyObject* Line(PyObject*, PyObject*) {
  char text[1024];
  const int bytes =
      std::abs(FindUserLine(text, static_cast<int>(sizeof(text))));
  if (bytes == 0) Py_RETURN_NONE;
  return PyUnicode_DecodeUTF8(text, bytes, "replace");
}

PyMethodDef kMethods[] = {
    {"begin", Begin, METH_VARARGS,
     "begin(libraries, package=<as before>)\n\n"
     "The core finds the lines of mallocs from now on; `libraries` are the\n"
     "directories whose code is nobody's own, `package` is this package's."},
    {"end", End, METH_NOARGS,
     "end()\n\n"
     "It finds none any more, and no thread is waiting for the GIL to."},
    {"line", Line, METH_NOARGS,
     "line() -> str | None\n\n"
     "The line of user code that runs: \"file:line function\"."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {
    PyModuleDef_HEAD_INIT,
    "_frames",
    "Finds the line of user code that a thread runs.",
    0,
    kMethods,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__frames(void) { return PyModuleDef_Init(&kModule); }
