// SPDX-License-Identifier: Apache-2.0
#include "python_shim/extensions/frames/python_frame.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace stratalloc {
namespace {

struct State {
  std::vector<std::string> libraries;
  std::string package;
  PyObject* known = PyDict_New();  // file name -> is it a library's
  PyObject* f_back = PyUnicode_InternFromString("f_back");
  PyObject* f_lasti = PyUnicode_InternFromString("f_lasti");
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

bool LiesIn(std::string_view file, const std::string& directory) {
  return file.size() > directory.size() &&
         file.substr(0, directory.size()) == directory &&
         file[directory.size()] == '/';
}

bool LiesInALibrary(std::string_view file) {
  const std::vector<std::string>& libraries = Get().libraries;
  return std::any_of(
      libraries.begin(), libraries.end(),
      [&](const std::string& directory) { return LiesIn(file, directory); });
}

bool IsALibrarysFile(PyObject* file) {
  State& state = Get();
  if (PyObject* known = PyDict_GetItemWithError(state.known, file)) {
    return known == Py_True;
  }
  const bool library = LiesInALibrary(Text(file));
  if (PyDict_Size(state.known) >= PythonFrame::kMostFiles) {
    PyDict_Clear(state.known);
  }
  PyDict_SetItem(state.known, file, library ? Py_True : Py_False);
  PyErr_Clear();  // it is known the next time, or not
  return library;
}

PyFrameObject* ToFrame(PyObject* object) {
  return reinterpret_cast<PyFrameObject*>(object);
}

}  // namespace

PythonFrame::PythonFrame(Ref frame) : frame_(std::move(frame)) {
  if (frame_) code_ = Ref(PyFrame_GetCode(ToFrame(frame_.get())));
}

PyObject* PythonFrame::File() const {
  if (!file_) file_ = Attribute(code_.get(), Get().co_filename);
  return file_.get();
}

PythonFrame PythonFrame::Innermost() {
  PyFrameObject* const innermost = PyEval_GetFrame();
  Py_XINCREF(reinterpret_cast<PyObject*>(innermost));
  return PythonFrame(Ref(innermost));
}

PythonFrame PythonFrame::Caller() const {
  Ref back = Attribute(frame_.get(), Get().f_back);
  if (!back || back.get() == Py_None) return {};
  return PythonFrame(std::move(back));
}

PythonFrame PythonFrame::Again() const {
  Py_INCREF(frame_.get());
  return PythonFrame(Ref(frame_.get()));
}

int PythonFrame::Line() const {
  return PyFrame_GetLineNumber(ToFrame(frame_.get()));
}

long PythonFrame::Instruction() const {
  const Ref value = Attribute(frame_.get(), Get().f_lasti);
  return value ? PyLong_AsLong(value.get()) : -1;
}

bool PythonFrame::HasFile() const {
  const std::string_view name = Text(File());
  return name.empty() || name.front() != '<';
}

bool PythonFrame::IsALibrarys() const {
  if (File() == nullptr) return false;
  if (HasFile()) return IsALibrarysFile(File());
  if (Text(File()).starts_with("<frozen ")) return true;
  const Ref globals = Attribute(frame_.get(), Get().f_globals);
  if (!globals || !PyDict_Check(globals.get())) return false;
  PyObject* const module =
      PyDict_GetItemWithError(globals.get(), Get().file);  // borrowed
  PyErr_Clear();
  return module != nullptr && PyUnicode_Check(module) &&
         IsALibrarysFile(module);
}

bool PythonFrame::IsThisPackages() const {
  const std::string& package = Get().package;
  return !package.empty() && File() != nullptr && LiesIn(Text(File()), package);
}

int PythonFrame::Write(char* text, int room) const {
  Ref function = Attribute(code_.get(), Get().co_qualname);
  if (!function) {  // before Python 3.11
    function = Attribute(code_.get(), Get().co_name);
  }
  std::string_view path = Text(File());
  constexpr std::size_t kOfTheRest = kLeastRoom / 2;
  const std::size_t most =
      static_cast<std::size_t>(std::max(room, kLeastRoom)) - kOfTheRest;
  if (path.size() > most) path.remove_prefix(path.size() - most);
  while (!path.empty() &&
         (static_cast<unsigned char>(path.front()) & 0xC0) == 0x80) {
    path.remove_prefix(1);  // the rest of a character that was cut
  }
  const std::string_view name = Text(function.get());
  const int written =
      std::snprintf(text, static_cast<std::size_t>(room), "%.*s:%d %.*s",
                    static_cast<int>(path.size()), path.data(), Line(),
                    static_cast<int>(name.size()), name.data());
  return std::min(written, room - 1);
}

bool PythonFrame::SetLibraries(PyObject* directories, const char* package) {
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
  if (package != nullptr) Get().package = package;
  PyDict_Clear(Get().known);
  return true;
}

}  // namespace stratalloc
