// SPDX-License-Identifier: Apache-2.0
#include "python_shim/extensions/opaque_uses/exports.h"

#include <cstdint>

#include "python_shim/c_api/c_api.h"

namespace stratalloc {
namespace {

constexpr std::int32_t kCuda = 2;          // DLPack's kDLCUDA
constexpr std::int32_t kCudaManaged = 13;  // kDLCUDAManaged

struct DlTensor {
  void* data;
  std::int32_t device_type, device_id;
  std::int32_t dimensions;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  std::int64_t *shape, *strides;
  std::uint64_t byte_offset;
};

struct DlManaged {
  DlTensor tensor;
  void* manager;
  void (*deleter)(DlManaged*);
};

struct DlManagedVersioned {
  std::uint32_t major, minor;
  void* manager;
  void (*deleter)(DlManagedVersioned*);
  std::uint64_t flags;
  DlTensor tensor;
};

struct DlExchangeApi {
  std::uint32_t major, minor;
  void* previous;  // the header of an older API
  int (*allocate)(DlTensor* prototype, DlManagedVersioned** out, void* context,
                  void (*set_error)(void* context, const char* kind,
                                    const char* message));
  int (*managed_from_object)(void* object, DlManagedVersioned** out);
  void* object_from_managed;
  int (*tensor_from_object)(void* object, DlTensor* out);
  void* current_stream;
};

constexpr char kExchangeName[] = "dlpack_exchange_api";

PyObject* out_of_memory = nullptr;
const DlExchangeApi* torchs_api = nullptr;
DlExchangeApi our_api;

// False with an exception: the bytes could not be brought back.
bool Keep(std::uint64_t address) {
  const std::uint64_t lo =
      __atomic_load_n(&stratalloc_evictable_lo, __ATOMIC_RELAXED);
  const std::uint64_t hi =
      __atomic_load_n(&stratalloc_evictable_hi, __ATOMIC_RELAXED);
  if (hi == 0 || address - lo >= hi - lo) return true;
  const stratalloc_range range{address, 1};
  stratalloc_pin pin;
  stratalloc_error error;
  int code = 0;
  Py_BEGIN_ALLOW_THREADS;
  code = stratalloc_pin_blocks("an export", STRATALLOC_PIN_EXPORTED, &range, 1,
                               &pin, &error);
  Py_END_ALLOW_THREADS;
  if (code == 0) return true;
  PyErr_SetString(code == STRATALLOC_OUT_OF_MEMORY && out_of_memory != nullptr
                      ? out_of_memory
                      : PyExc_RuntimeError,
                  error.message);
  return false;
}

bool Keep(const DlTensor& tensor) {
  if (tensor.device_type != kCuda && tensor.device_type != kCudaManaged) {
    return true;
  }
  return Keep(reinterpret_cast<std::uint64_t>(tensor.data) +
              tensor.byte_offset);
}

// An output of somebody else's: perhaps without the GIL.
int Allocate(DlTensor* prototype, DlManagedVersioned** out, void* context,
             void (*set_error)(void* context, const char* kind,
                               const char* message)) {
  const int code = torchs_api->allocate(prototype, out, context, set_error);
  if (code != 0 || ((*out)->tensor.device_type != kCuda &&
                    (*out)->tensor.device_type != kCudaManaged)) {
    return code;
  }
  const stratalloc_range range{
      reinterpret_cast<std::uint64_t>((*out)->tensor.data), 1};
  stratalloc_pin pin;
  stratalloc_error error;
  if (stratalloc_pin_blocks("an export", STRATALLOC_PIN_EXPORTED, &range, 1,
                            &pin, &error) == 0) {
    return 0;
  }
  if ((*out)->deleter != nullptr) (*out)->deleter(*out);
  *out = nullptr;
  if (set_error != nullptr) set_error(context, "MemoryError", error.message);
  return -1;
}

int ManagedFromObject(void* object, DlManagedVersioned** out) {
  const int code = torchs_api->managed_from_object(object, out);
  if (code != 0 || Keep((*out)->tensor)) return code;
  if ((*out)->deleter != nullptr) (*out)->deleter(*out);
  *out = nullptr;
  return -1;
}

int TensorFromObject(void* object, DlTensor* out) {
  const int code = torchs_api->tensor_from_object(object, out);
  return code != 0 || Keep(*out) ? code : -1;
}

}  // namespace

void SetExportError(PyObject* type) {
  Py_INCREF(type);
  out_of_memory = type;
}

PyObject* ExportAddress(PyObject*, PyObject* address) {
  const std::uint64_t value = PyLong_AsUnsignedLongLong(address);
  if (PyErr_Occurred() != nullptr || !Keep(value)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* ExportCapsule(PyObject*, PyObject* capsule) {
  const DlTensor* tensor = nullptr;
  if (PyCapsule_IsValid(capsule, "dltensor") != 0) {
    tensor = &static_cast<DlManaged*>(PyCapsule_GetPointer(capsule, "dltensor"))
                  ->tensor;
  } else if (PyCapsule_IsValid(capsule, "dltensor_versioned") != 0) {
    tensor = &static_cast<DlManagedVersioned*>(
                  PyCapsule_GetPointer(capsule, "dltensor_versioned"))
                  ->tensor;
  }
  if (tensor != nullptr && !Keep(*tensor)) return nullptr;
  Py_INCREF(capsule);
  return capsule;
}

PyObject* MakeExchangeApi(PyObject*, PyObject* capsule) {
  const auto* api = static_cast<const DlExchangeApi*>(
      PyCapsule_GetPointer(capsule, kExchangeName));
  if (api == nullptr) return nullptr;
  if (api->major != 1) {
    PyErr_Format(PyExc_TypeError,
                 "the DLPack exchange API has version %u, known is 1",
                 api->major);
    return nullptr;
  }
  if (torchs_api == nullptr) {
    torchs_api = api;
    our_api = *api;
    our_api.allocate = &Allocate;
    our_api.managed_from_object = &ManagedFromObject;
    if (api->tensor_from_object != nullptr) {
      our_api.tensor_from_object = &TensorFromObject;
    }
  }
  return PyCapsule_New(&our_api, kExchangeName, nullptr);
}

}  // namespace stratalloc
