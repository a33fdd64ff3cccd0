// SPDX-License-Identifier: Apache-2.0
#include "python_shim/frames/user_line.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stratalloc {
namespace {

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

struct State {
  std::vector<std::string> libraries;
  PyObject* known = PyDict_New();  // file name -> is it a library's
  PyObject* f_back = PyUnicode_InternFromString("f_back");
  PyObject* f_globals = PyUnicode_InternFromString("f_globals");
  PyObject* co_filename = PyUnicode_InternFromString("co_filename");
  PyObject* co_name = PyUnicode_InternFromString("co_name");
  PyObject* co_qualname = PyUnicode_InternFromString("co_qualname");
  PyObject* file = PyUnicode_InternFromString("__file__");
};
State& Get() {
  static State* const state = new State;  // mallocs come until the end
  return *state;
}

// nullptr, without an exception, if it has none.
Ref Attribute(PyObject* object, PyObject* name) {
  Ref value(PyObject_GetAttr(object, name));
  if (!value) PyErr_Clear();
  return value;
}

// Lives as long as the object. "?" of what UTF-8 cannot say.
std::string_view Text(PyObject* object) {
  Py_ssize_t bytes = 0;
  const char* const text =
      object != nullptr ? PyUnicode_AsUTF8AndSize(object, &bytes) : nullptr;
  if (text != nullptr) return {text, static_cast<std::size_t>(bytes)};
  PyErr_Clear();
  return "?";
}

bool LiesInALibrary(std::string_view file) {
  const std::vector<std::string>& libraries = Get().libraries;
  return std::any_of(libraries.begin(), libraries.end(),
                     [&](const std::string& directory) {
                       return file.size() > directory.size() &&
                              file.substr(0, directory.size()) == directory &&
                              file[directory.size()] == '/';
                     });
}

bool IsALibrarysFile(PyObject* file) {
  State& state = Get();
  if (PyObject* known = PyDict_GetItemWithError(state.known, file)) {
    return known == Py_True;
  }
  const bool library = LiesInALibrary(Text(file));
  if (PyDict_Size(state.known) >= UserLine::kMostFiles) {
    PyDict_Clear(state.known);
  }
  PyDict_SetItem(state.known, file, library ? Py_True : Py_False);
  PyErr_Clear();  // it is known the next time, or not
  return library;
}

bool IsALibrarys(PyObject* frame, PyObject* file) {
  const std::string_view name = Text(file);
  if (name.empty() || name.front() != '<') return IsALibrarysFile(file);
  if (name.starts_with("<frozen ")) return true;
  const Ref globals = Attribute(frame, Get().f_globals);
  if (!globals || !PyDict_Check(globals.get())) return false;
  PyObject* const module =
      PyDict_GetItemWithError(globals.get(), Get().file);  // borrowed
  PyErr_Clear();
  return module != nullptr && PyUnicode_Check(module) &&
         IsALibrarysFile(module);
}

Ref CodeOf(PyObject* frame) {
  return Ref(PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame)));
}

// The frame to tell of; none of a thread without one.
Ref Choose() {
  PyFrameObject* const innermost = PyEval_GetFrame();
  Py_XINCREF(reinterpret_cast<PyObject*>(innermost));
  Ref frame(innermost);
  while (frame) {
    const Ref file = Attribute(CodeOf(frame.get()).get(), Get().co_filename);
    if (!file || !IsALibrarys(frame.get(), file.get())) break;
    Ref back = Attribute(frame.get(), Get().f_back);
    if (!back || back.get() == Py_None) break;
    frame = std::move(back);
  }
  return frame;
}

int Write(PyObject* frame, char* text, int room) {
  const Ref code = CodeOf(frame);
  const Ref file = Attribute(code.get(), Get().co_filename);
  Ref function = Attribute(code.get(), Get().co_qualname);
  if (!function) {  // before Python 3.11
    function = Attribute(code.get(), Get().co_name);
  }
  std::string_view path = Text(file.get());
  constexpr std::size_t kOfTheRest = 160;
  const std::size_t most =
      std::max(static_cast<std::size_t>(room), 2 * kOfTheRest) - kOfTheRest;
  if (path.size() > most) path.remove_prefix(path.size() - most);
  while (!path.empty() &&
         (static_cast<unsigned char>(path.front()) & 0xC0) == 0x80) {
    path.remove_prefix(1);  // the rest of a character that was cut
  }
  const std::string_view name = Text(function.get());
  const int written = std::snprintf(
      text, static_cast<std::size_t>(room), "%.*s:%d %.*s",
      static_cast<int>(path.size()), path.data(),
      PyFrame_GetLineNumber(reinterpret_cast<PyFrameObject*>(frame)),
      static_cast<int>(name.size()), name.data());
  return std::min(written, room - 1);
}

}  // namespace

bool UserLine::SetLibraries(PyObject* directories) {
  std::vector<std::string> read;
  const Py_ssize_t count = PySequence_Size(directories);
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Ref each(PySequence_GetItem(directories, i));
    if (!each) return false;
    Py_ssize_t bytes = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(each.get(), &bytes);
    if (text == nullptr) return false;
    read.emplace_back(text, static_cast<std::size_t>(bytes));
  }
  if (count < 0) return false;
  Get().libraries = std::move(read);
  PyDict_Clear(Get().known);
  return true;
}

int UserLine::Find(char* text, int room) {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  const Ref frame = Choose();
  PyErr_Clear();
  const int written = frame ? Write(frame.get(), text, room) : 0;
  PyErr_Restore(type, value, traceback);
  return written;
}

}  // namespace stratalloc
