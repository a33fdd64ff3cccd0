// SPDX-License-Identifier: Apache-2.0
#include "python_shim/bridge_api/ipc.h"

#include <map>
#include <utility>

#include "allocator/base/mutex.h"
#include "allocator/ipc.h"
#include "python_shim/bridge_api/imports.h"
#include "python_shim/bridge_api/operators.h"
#include "python_shim/core/core.h"

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

namespace core {

Result<SharedBlock> ShareBlock(Address address) {
  DeviceAllocator* device = Core::Get().abandoned()
                                ? nullptr
                                : Allocator::Get().FindByAddress(address);
  BlockView block;
  if (device == nullptr || !device->FindLive(address, &block)) {
    return Fail(ErrorCode::kNotFound, "invalid device pointer");
  }
  // Brings back what is away, and keeps it until the block is pinned for good.
  const Access whole{block.address, block.bytes, /*written=*/true};
  STRATALLOC_RETURN_IF_ERROR(
      EnterOperator(static_cast<int>(device->device().index()), kDefaultStream,
                    "share", {&whole, 1}));
  // The other process waits for the sender's current stream, which is ordered
  // behind no copy.
  const Status arrived = device->DrainArrivals();
  Result<SharedBlock> shared = arrived
                                   ? Allocator::Get().Share(*device, address)
                                   : tl::unexpected(arrived.error());
  LeaveOperator();
  return shared;
}

Result<OpenedMemory> OpenShared(int device, std::string_view handle) {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * allocator,
                              Core::Get().Device(device));
  Imports& imports = Imports::Get();
  return allocator->WhenReady([&]() -> Result<OpenedMemory> {
    // Held throughout: a peer that is granted meanwhile must not miss this one.
    MutexLock lock(imports.mutex);
    STRATALLOC_ASSIGN_OR_RETURN(
        ImportedMemory memory,
        ImportedMemory::Open(allocator->device(), allocator->peers(), handle));
    const OpenedMemory opened{memory.address(), imports.next++};
    imports.open.emplace(opened.token, std::move(memory));
    return opened;
  });
}

Status CloseShared(std::uint64_t token) {
  if (Core::Get().abandoned()) return {};
  Imports& imports = Imports::Get();
  auto closing = [&] {
    MutexLock lock(imports.mutex);
    return imports.open.extract(token);
  }();
  if (closing.empty()) {
    return Fail(ErrorCode::kNotFound, "nothing is open under this token");
  }
  return closing.mapped().Close();  // waits: no lock
}

}  // namespace core
}  // namespace stratalloc
