// SPDX-License-Identifier: Apache-2.0
// C API: memory of other processes.
#include "python_shim/bridge_api/ipc.h"

#include <string_view>

#include "python_shim/c_api/to_c.h"

using namespace stratalloc;  // the C face of this namespace

extern "C" {

int stratalloc_ipc_open(int device, const void* bytes, uint64_t size,
                        void** ptr, uint64_t* token, stratalloc_error* error) {
  const Result<core::OpenedMemory> opened = core::OpenShared(
      device, std::string_view(static_cast<const char*>(bytes), size));
  if (!opened) return ToC(opened.error(), error);
  *ptr = reinterpret_cast<void*>(opened->address);
  *token = opened->token;
  return 0;
}

int stratalloc_ipc_close(uint64_t token, stratalloc_error* error) {
  return ToC(core::CloseShared(token), error);
}

}  // extern "C"
