// SPDX-License-Identifier: Apache-2.0
// What the recording core does not play: these functions are there so that the
// bridge loads, and refuse by name. They are tested with the real core, by the
// tests of PyTorch's own features in tests/simulator/cudasim.
#include <string>

#include "python_shim/bridge_api/ipc.h"
#include "python_shim/bridge_api/pools.h"

namespace stratalloc::core {
namespace {

tl::unexpected<Error> Refuse(const char* function) {
  return Fail(ErrorCode::kUnsupported,
              std::string("the recording core has no ") + function);
}

}  // namespace

Status UsePool(int, PoolId, std::shared_ptr<const MemorySource>) {
  return Refuse(__func__);
}
Status BeginAllocateToPool(int, PoolId, std::function<bool(StreamId)>, StreamId,
                           std::span<const Access>) {
  return Refuse(__func__);
}
Result<bool> EndAllocateToPool(int, PoolId, bool) { return Refuse(__func__); }
Status ReleasePool(int, PoolId) { return Refuse(__func__); }
int PoolUseCount(int, PoolId) { return 0; }
Status SetPoolUseOnOom(int, PoolId, bool) { return Refuse(__func__); }
Status SetPoolNoSplit(int, PoolId) { return Refuse(__func__); }
Status EmptyPool(int, PoolId) { return Refuse(__func__); }
Result<std::vector<Address>> AllocatedIn(int, PoolId) {
  return Refuse(__func__);
}
Result<Checkpoint> TakeCheckpoint(int, PoolId) { return Refuse(__func__); }
Result<CheckpointDelta> GoBackTo(int, const Checkpoint&) {
  return Refuse(__func__);
}

Result<SharedBlock> ShareBlock(Address) { return Refuse(__func__); }
Result<OpenedMemory> OpenShared(int, std::string_view) {
  return Refuse(__func__);
}
Status CloseShared(std::uint64_t) { return {}; }

}  // namespace stratalloc::core
