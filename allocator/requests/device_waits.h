// SPDX-License-Identifier: Apache-2.0
// What waits for a device without its lock: cached memory on its way back to
// the driver, the events of freed blocks, a driver that is not ready.
//
// Thread-safety: every method, and the caller holds no lock but where it says
// so. Lifetime: the device's. Nothing waits while a stream captures, whose
// capture that would spoil; then nothing is given back either.
// Fails: SynchronizePendingFrees as the driver does, WhenReady as its call.
#ifndef STRATALLOC_ALLOCATOR_REQUESTS_DEVICE_WAITS_H_
#define STRATALLOC_ALLOCATOR_REQUESTS_DEVICE_WAITS_H_

#include <cstdint>
#include <string>
#include <type_traits>

#include "allocator/base/condition.h"
#include "allocator/base/result.h"
#include "allocator/requests/device_parts.h"

namespace stratalloc {

class DeviceWaits {
 public:
  explicit DeviceWaits(DeviceParts& parts) : p_(parts) {}

  // ---- a driver that is not ready (kNotReady) -----------------------------

  // Some drivers answer a change of mappings with that now and then while the
  // device has work to do. It is tried again once that work is over, because a
  // job must not die of it; and an answer that does not end is a kDevice. On
  // WSL2 other threads' work, or memory that the host cannot make resident, may
  // cause it many times in a row (microsoft/WSL issue 41176).
  // `call` takes the locks it needs itself, since nobody waits for the device
  // under one.
  template <typename Call>
  std::invoke_result_t<Call&> WhenReady(Call&& call) EXCLUDES(p_.mutex) {
    auto answer = call();
    for (int i = 0; i < kSettles && IsNotReady(answer); ++i) {
      Settle();
      answer = call();
    }
    if (IsNotReady(answer) && GiveToDriver() > 0) answer = call();
    if (!IsNotReady(answer)) return answer;
    return Fail(ErrorCode::kDevice, answer.error().message + ", " +
                                        std::to_string(kSettles + 1) +
                                        " times in a row");
  }

  // ---- cached memory goes back ---------------------------------------------

  // Gives up wholly free handles of every pool until `wanted` bytes came free.
  // Waits for the streams that used them, since kernels may still be running.
  // Returns the bytes. `only`: of this private pool alone. Nothing of private
  // pools in use else.
  Bytes ReleaseCached(Bytes wanted, PoolId only = {}) EXCLUDES(p_.mutex);
  // All of it, and what else is free here, to the driver. Returns the bytes of
  // that.
  Bytes GiveToDriver() EXCLUDES(p_.mutex);
  // Calls of ReleaseCached that are over. The caller holds the device lock.
  std::uint64_t releases();
  // Until none is under way: memory that another thread is releasing right now
  // is worth waiting for. The caller holds the device lock, which is let go of
  // meanwhile.
  void AwaitReleases();

  // ---- freed blocks --------------------------------------------------------

  // `counted`: in num_sync_all_streams.
  Status SynchronizePendingFrees(bool counted = true) EXCLUDES(p_.mutex);

 private:
  static constexpr int kSettles = 100;
  template <typename R>
  static bool IsNotReady(const R& answer) {
    return !answer && answer.error().code == ErrorCode::kNotReady;
  }
  // Waits for the work of the device.
  void Settle() EXCLUDES(p_.mutex);
  // False if these streams' work may go on.
  bool WaitForStreams(std::uint64_t used_streams) EXCLUDES(p_.mutex);

  DeviceParts& p_;
  int releasing_ GUARDED_BY(p_.mutex) = 0;  // ReleaseCached calls under way
  std::uint64_t releases_ GUARDED_BY(p_.mutex) = 0;  // and those that are over
  Condition released_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_REQUESTS_DEVICE_WAITS_H_
