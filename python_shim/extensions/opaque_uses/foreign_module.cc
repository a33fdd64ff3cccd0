// SPDX-License-Identifier: Apache-2.0
// The Python extension `stratalloc._native._foreign`: what is called so often,
// for uses of tensors that no operator shows, that ctypes would cost more than
// the call.
//
//   enter, leave    tensors become the operands of one operator, or of a call
//                   (operands.h has where they are looked for)
//   data_ptr        torch.Tensor.data_ptr, which hands an address out
//   export_*        what DLPack and others carry away stays (exports.h)
//
// It knows no torch header: tensors are told by their type and given to the
// bridge as TensorImpl* (Tensor._cdata); the bridge's functions come by address
// (`bind`), because one of several bridges is loaded. Without `bind` enter()
// enters nothing.
//
// The GIL is released around what may wait for copies or room.
//
// Errors: enter() raises torch.OutOfMemoryError when the operands do not fit
// their devices together, RuntimeError when bytes cannot be brought back; then
// nothing is held. data_ptr() raises what torch's own raises, nothing else.
//
// Lifetime: what bind() was given is kept until the process ends.
#include <cstdint>
#include <cstring>

#include "python_shim/c_api/c_api.h"
#include "python_shim/extensions/limited_api.h"
#include "python_shim/extensions/opaque_uses/exports.h"
#include "python_shim/extensions/opaque_uses/operands.h"

using stratalloc::NoOverrides;
using stratalloc::Operands;

namespace {

using stratalloc::CheckCount;
using stratalloc::Erase;

// stratalloc_torch_call_enter and _leave (torch_bridge/guard/foreign_call.h).
using EnterCall = int (*)(const char* name, const void* const* tensors,
                          int count, int written, int copies, int kind,
                          void** out, char* message, int bytes);
using LeaveCall = int (*)(void* call, char* message, int bytes);

constexpr int kOutOfMemory = 2;  // of entry_point.h

constexpr int kText = 2048;  // of an error, with its end

EnterCall enter_call = nullptr;
LeaveCall leave_call = nullptr;
PyObject* tensor_type = nullptr;
PyObject* out_of_memory = nullptr;
PyObject* original_data_ptr = nullptr;  // TensorBase's method

PyObject* Bind(PyObject*, PyObject* args) {
  unsigned long long enter = 0, leave = 0;
  PyObject *tensor = nullptr, *error = nullptr, *parameter = nullptr;
  PyObject *disable = nullptr, *mode = nullptr;
  if (!PyArg_ParseTuple(args, "KKOOOOO", &enter, &leave, &tensor, &error,
                        &parameter, &disable, &mode)) {
    return nullptr;
  }
  Operands::Bind(tensor, parameter, disable, mode);
  Py_INCREF(error);
  tensor_type = tensor;  // kept by Operands
  out_of_memory = error;
  stratalloc::SetExportError(error);
  leave_call = reinterpret_cast<LeaveCall>(leave);
  enter_call = reinterpret_cast<EnterCall>(enter);
  Py_RETURN_NONE;
}

// False with an exception, and nothing entered. *call is nullptr if nothing had
// to be.
bool DoEnter(PyObject* name_object, PyObject* reads, PyObject* writes,
             bool copies, bool function, void** call) {
  *call = nullptr;
  if (enter_call == nullptr ||
      __atomic_load_n(&stratalloc_evictable_hi, __ATOMIC_ACQUIRE) == 0) {
    return true;
  }
  Py_ssize_t bytes = 0;
  const char* const name = PyUnicode_AsUTF8AndSize(name_object, &bytes);
  if (name == nullptr) return false;
  Operands operands;
  int written = 0;
  {
    NoOverrides overrides;
    if (!overrides.BeginForMode() || !operands.Add(writes, &overrides)) {
      return false;
    }
    written = operands.count();
    if (!operands.Add(reads, &overrides)) return false;
  }
  char message[kText] = "";
  int code = 0;
  Py_BEGIN_ALLOW_THREADS;
  code = enter_call(name, operands.tensors().data(), operands.count(), written,
                    copies ? 1 : 0, function ? 1 : 0, call, message, kText);
  Py_END_ALLOW_THREADS;
  if (code == 0) return true;
  PyErr_SetString(code == kOutOfMemory ? out_of_memory : PyExc_RuntimeError,
                  message);
  return false;
}

// Ends a call of whose code the exception, if any, is set. One that is what it
// was told when others took its room, which it must not take for memory, is
// OutOfMemoryError outside.
void LeaveRaising(void* call) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  char told[kText] = "";
  const bool ousted = leave_call(call, told, kText) != 0 && value != nullptr &&
                      PyErr_GivenExceptionMatches(type, PyExc_RuntimeError);
  PyObject* const text = ousted ? PyObject_Str(value) : nullptr;
  const char* const said =
      text == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(text, nullptr);
  if (said != nullptr && std::strncmp(said, told, std::strlen(told)) == 0) {
    Py_DECREF(type);
    Py_DECREF(value);
    Py_XDECREF(trace);
    PyErr_SetString(out_of_memory, told);
  } else {
    PyErr_Restore(type, value, trace);
  }
  Py_XDECREF(text);
}

PyObject* Enter(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!CheckCount("enter", count, 5)) return nullptr;
  const int copies = PyObject_IsTrue(args[3]);
  const int function = PyObject_IsTrue(args[4]);
  void* call = nullptr;
  if (copies < 0 || function < 0 ||
      !DoEnter(args[0], args[1], args[2], copies != 0, function != 0, &call)) {
    return nullptr;
  }
  if (call == nullptr) Py_RETURN_NONE;
  return PyLong_FromVoidPtr(call);
}

// Enter, call and leave without a byte code between, where a signal's handler
// may raise.
PyObject* Call(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!CheckCount("call", count, 7)) return nullptr;
  const int function = PyObject_IsTrue(args[3]);
  void* call = nullptr;
  if (function < 0 ||
      !DoEnter(args[0], args[1], args[2], false, function != 0, &call)) {
    return nullptr;
  }
  PyObject* const result =
      PyObject_Call(args[4], args[5], args[6] == Py_None ? nullptr : args[6]);
  if (call != nullptr) LeaveRaising(call);
  return result;
}

PyObject* Leave(PyObject*, PyObject* call) {
  if (call == Py_None) Py_RETURN_NONE;
  void* const address = PyLong_AsVoidPtr(call);
  if (address == nullptr) {
    if (PyErr_Occurred() == nullptr) {
      PyErr_SetString(PyExc_ValueError, "leave() takes what enter() returned");
    }
    return nullptr;
  }
  char told[kText] = "";
  if (leave_call(address, told, kText) == 0) Py_RETURN_NONE;
  return PyUnicode_DecodeUTF8(told, static_cast<Py_ssize_t>(std::strlen(told)),
                              "replace");
}

PyObject* DataPtr(PyObject* self, PyObject*) {
  PyObject* const result =
      PyObject_CallFunctionObjArgs(original_data_ptr, self, nullptr);
  if (result == nullptr || PyLong_Check(result) == 0) return result;
  const std::uint64_t lo =
      __atomic_load_n(&stratalloc_evictable_lo, __ATOMIC_RELAXED);
  const std::uint64_t hi =
      __atomic_load_n(&stratalloc_evictable_hi, __ATOMIC_RELAXED);
  if (hi == 0) return result;
  const std::uint64_t address = PyLong_AsUnsignedLongLong(result);
  if (address == static_cast<std::uint64_t>(-1)) PyErr_Clear();
  if (address - lo >= hi - lo || stratalloc_must_hand_out(address) == 0) {
    return result;
  }
  Py_BEGIN_ALLOW_THREADS;
  stratalloc_hand_out(address);
  Py_END_ALLOW_THREADS;
  return result;
}

PyMethodDef data_ptr_method = {
    "data_ptr", DataPtr, METH_NOARGS,
    "data_ptr() -> int\n\n"
    "Returns the address of the first element of :attr:`self` tensor. Its\n"
    "memory is brought back to the device and stays there for a while, as far\n"
    "as there is room; stratalloc.pin() keeps it for as long as it is used."};

PyObject* MakeDataPtr(PyObject*, PyObject* original) {
  Py_INCREF(original);
  original_data_ptr = original;
  return PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(tensor_type),
                           &data_ptr_method);
}

PyMethodDef kMethods[] = {
    {"bind", Bind, METH_VARARGS,
     "bind(enter, leave, Tensor, OutOfMemoryError, Parameter,\n"
     "     DisableTorchFunction, is_torch_function_mode_enabled)\n\n"
     "The addresses of the bridge's functions, and what is needed of torch."},
    {"enter", Erase(Enter), METH_FASTCALL,
     "enter(name, reads, writes, copies, function) -> int or None\n\n"
     "Makes the tensors in both lists the operands of one operator (function\n"
     "false) or call (true). Give the result to leave(), on this thread."},
    {"call", Erase(Call), METH_FASTCALL,
     "call(name, reads, writes, function, callable, args, kwargs)\n\n"
     "enter(), callable(*args, **kwargs), leave(); kwargs may be None."},
    {"leave", Leave, METH_O,
     "leave(call) -> str or None\n\n"
     "Ends what enter() began. A text: others took its room meanwhile, and a\n"
     "RuntimeError that begins so is torch.OutOfMemoryError from here on."},
    {"make_data_ptr", MakeDataPtr, METH_O,
     "make_data_ptr(original) -> method\n\n"
     "torch.Tensor.data_ptr: calls `original` and hands its result out."},
    {"export_address", stratalloc::ExportAddress, METH_O,
     "export_address(address)\n\n"
     "The block that holds it stays on the device until it is freed."},
    {"export_capsule", stratalloc::ExportCapsule, METH_O,
     "export_capsule(capsule) -> capsule\n\n"
     "The same for the block that a fresh DLPack capsule shows."},
    {"exchange_api", stratalloc::MakeExchangeApi, METH_O,
     "exchange_api(capsule) -> capsule\n\n"
     "torch's C exchange API of DLPack 1.2 or newer, exporting as above."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {
    PyModuleDef_HEAD_INIT,
    "_foreign",
    "Uses of tensors that no operator shows, at the speed of a C call.",
    0,
    kMethods,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__foreign(void) { return PyModuleDef_Init(&kModule); }
