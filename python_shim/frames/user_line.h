// SPDX-License-Identifier: Apache-2.0
// The line of user code that a thread runs: of the frames on its stack the
// innermost whose code lies outside libraries; the outermost if all lie in one.
//
// A library is a directory (SetLibraries; stratalloc/_sites.py knows them), and
// what is in it or below it. Code without a file ("<string>", "<stdin>") is of
// the module in whose globals it runs, by that one's __file__; where there is
// none it is the user's. Frozen modules are the interpreter's.
//
// The GIL is held for all of it. Nothing raises: an exception that was set
// before is set afterwards, one from here is dropped. No code of Python's runs,
// but a collection may, and so whatever is finalised.
// Lifetime: what is looked up once is kept until the process ends; what is
// known of files is bounded (kMostFiles), and forgotten together when full.
#ifndef STRATALLOC_PYTHON_SHIM_FRAMES_USER_LINE_H_
#define STRATALLOC_PYTHON_SHIM_FRAMES_USER_LINE_H_

#include "python_shim/limited_api.h"

namespace stratalloc {

class UserLine {
 public:
  static constexpr Py_ssize_t kMostFiles = 4096;

  // Directories, a sequence of str without a trailing slash. False with an
  // exception.
  static bool SetLibraries(PyObject* directories);
  // Writes "file:line function" of the calling thread, `room` bytes with its
  // end at most, of too long a path its end; returns its length, 0 if the
  // thread has no frame.
  static int Find(char* text, int room);
};

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_FRAMES_USER_LINE_H_
