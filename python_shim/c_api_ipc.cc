// SPDX-License-Identifier: Apache-2.0
// C API: memory past the cache, and memory shared between processes.
#include <map>
#include <string_view>
#include <utility>

#include "allocator/base/mutex.h"
#include "allocator/device/plain_memory.h"
#include "allocator/ipc.h"
#include "python_shim/core.h"
#include "python_shim/imports.h"

namespace stratalloc {
namespace {

struct Imports {
  Mutex mutex{LockRank::kImports};
  std::map<std::uint64_t, ImportedMemory> open GUARDED_BY(mutex);
  std::uint64_t next GUARDED_BY(mutex) = 1;

  static Imports& Get() {
    static auto* const imports = new Imports;
    return *imports;
  }
};

}  // namespace

Status GrantImports(DeviceIndex owner, DeviceIndex peer) {
  Imports& imports = Imports::Get();
  MutexLock lock(imports.mutex);
  for (const auto& [token, memory] : imports.open) {
    if (memory.device().index() != owner) continue;
    STRATALLOC_RETURN_IF_ERROR(memory.Grant(peer));
  }
  return {};
}

}  // namespace stratalloc

using namespace stratalloc;  // the C face of this namespace

extern "C" {

int stratalloc_uncached_malloc(uint64_t size, void** out) {
  *out = nullptr;
  return size == 0 ? 0 : PlainMalloc(size, out);
}

int stratalloc_uncached_free(void* ptr) {
  return ptr == nullptr ? 0 : PlainFree(ptr);
}

int stratalloc_ipc_share(void* ptr, uint64_t* offset,
                         void (*sink)(void*, const void*, uint64_t),
                         void* context, stratalloc_error* error) {
  const Address address = reinterpret_cast<Address>(ptr);
  DeviceAllocator* device = Core::Get().abandoned()
                                ? nullptr
                                : Allocator::Get().FindByAddress(address);
  BlockView block;
  if (device == nullptr || !device->FindLive(address, &block)) {
    return ToC(Error{ErrorCode::kNotFound, "invalid device pointer"}, error);
  }
  // Brings back what is away, and keeps it until the block is pinned for good.
  const stratalloc_access whole{block.address, block.bytes, 1};
  const int failed = stratalloc_operator_enter(
      static_cast<int>(device->device().index()), 0, "share", &whole, 1, error);
  if (failed != 0) return failed;
  // The other process waits for the sender's current stream, which is ordered
  // behind no copy.
  const Status arrived = device->DrainArrivals();
  const Result<SharedBlock> shared =
      arrived ? Allocator::Get().Share(*device, address)
              : tl::unexpected(arrived.error());
  stratalloc_operator_leave();
  if (!shared) return ToC(shared.error(), error);
  *offset = shared->offset;
  sink(context, shared->handle.data(), shared->handle.size());
  return 0;
}

int stratalloc_ipc_open(int device, const void* bytes, uint64_t size,
                        void** ptr, uint64_t* token, stratalloc_error* error) {
  Result<DeviceAllocator*> allocator = Core::Get().Device(device);
  if (!allocator) return ToC(allocator.error(), error);
  Imports& imports = Imports::Get();
  const Status opened = (*allocator)->WhenReady([&]() -> Status {
    // Held throughout: a peer that is granted meanwhile must not miss this one.
    MutexLock lock(imports.mutex);
    STRATALLOC_ASSIGN_OR_RETURN(
        ImportedMemory memory,
        ImportedMemory::Open(
            (*allocator)->device(), (*allocator)->peers(),
            std::string_view(static_cast<const char*>(bytes), size)));
    *ptr = reinterpret_cast<void*>(memory.address());
    *token = imports.next++;
    imports.open.emplace(*token, std::move(memory));
    return {};
  });
  return opened ? 0 : ToC(opened.error(), error);
}

int stratalloc_ipc_close(uint64_t token, stratalloc_error* error) {
  if (Core::Get().abandoned()) return 0;
  Imports& imports = Imports::Get();
  auto closing = [&] {
    MutexLock lock(imports.mutex);
    return imports.open.extract(token);
  }();
  if (closing.empty()) {
    return ToC(Error{ErrorCode::kNotFound, "nothing is open under this token"},
               error);
  }
  const Status closed = closing.mapped().Close();  // waits: no lock
  return closed ? 0 : ToC(closed.error(), error);
}

}  // extern "C"
