// SPDX-License-Identifier: Apache-2.0
// A frame of Python's, looked at through the limited API: whose code it runs,
// who called it, and what it is called ("file:line function").
//
// A library is a directory (SetLibraries; stratalloc/_ownership/sites.py knows
// them), and what is in it or below it. Code without a file ("<string>",
// "<stdin>") is of the module in whose globals it runs, by that one's __file__;
// where there is none it is the user's. Frozen modules are the interpreter's.
//
// The GIL is held for all of it. Nothing raises: an exception from here is
// dropped, so whoever calls keeps what was set before (KeepError). No code of
// Python's runs, but a collection may, and so whatever is finalised.
// Lifetime: what is looked up once is kept until the process ends; what is
// known of files is bounded (kMostFiles), and forgotten together when full.
#ifndef STRATALLOC_PYTHON_SHIM_EXTENSIONS_FRAMES_PYTHON_FRAME_H_
#define STRATALLOC_PYTHON_SHIM_EXTENSIONS_FRAMES_PYTHON_FRAME_H_

#include <utility>

#include "python_shim/extensions/limited_api.h"

namespace stratalloc {

// A reference that is let go. REQUIRES: the GIL.
class Ref {
 public:
  Ref() = default;
  explicit Ref(void* owned) : object_(static_cast<PyObject*>(owned)) {}
  ~Ref() { Py_XDECREF(object_); }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// What is raised while it lives is dropped; what was set before is set again.
class KeepError {
 public:
  KeepError() { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~KeepError() {
    PyErr_Clear();
    PyErr_Restore(type_, value_, traceback_);
  }
  KeepError(const KeepError&) = delete;
  KeepError& operator=(const KeepError&) = delete;

 private:
  PyObject *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
};

class PythonFrame {
 public:
  static constexpr Py_ssize_t kMostFiles = 4096;
  // Of a frame's text at least: less is not told apart.
  static constexpr int kLeastRoom = 320;

  // Directories, a sequence of str without a trailing slash, and that of this
  // package, whose hooks are on stacks (nullptr: as before). False with an
  // exception.
  static bool SetLibraries(PyObject* directories, const char* package);

  PythonFrame() = default;
  // This thread's innermost; none of a thread without one.
  static PythonFrame Innermost();

  explicit operator bool() const { return static_cast<bool>(frame_); }
  PythonFrame Caller() const;
  PythonFrame Again() const;  // the same one
  PyObject* code() const { return code_.get(); }
  int Line() const;
  // Of the code, the one that runs: found at once, where a line is searched for
  // in a table as long as the function.
  long Instruction() const;
  bool IsALibrarys() const;
  bool IsThisPackages() const;
  // Has it a file? Else whose it is depends on the frame, not on its code.
  bool HasFile() const;
  // Writes "file:line function", `room` bytes with its end at most, of too long
  // a path its end; returns its length.
  int Write(char* text, int room) const;

 private:
  explicit PythonFrame(Ref frame);
  PyObject* File() const;

  Ref frame_, code_;
  mutable Ref file_;  // asked for by few
};

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_EXTENSIONS_FRAMES_PYTHON_FRAME_H_
