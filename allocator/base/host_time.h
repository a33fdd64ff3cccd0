// SPDX-License-Identifier: Apache-2.0
// Events of the host that take time or memory and that no call of CUDA shows: a
// thread computes over bytes of the host or chooses among handles, a thread
// waits for another one, a thread is about to touch memory. A model of the
// host, such as that of a simulated device, listens here; there is no listener
// in production.
//
// Cost: one load per event. No event is on the path of a malloc, free or
// operator that neither waits nor moves bytes.
//
// Lifetime: a listener is set once and outlives the process's last event.
// Thread-safety: all functions, under any lock; a listener may take none of
// ours.
#ifndef STRATALLOC_ALLOCATOR_BASE_HOST_TIME_H_
#define STRATALLOC_ALLOCATOR_BASE_HOST_TIME_H_

#include <atomic>
#include <cstdint>

#include "allocator/base/bytes.h"

namespace stratalloc {

struct HostTimeListener {
  // The calling thread has read so many bytes and computed their checksum.
  void (*checksummed)(std::uint64_t bytes) = nullptr;
  // Whoever waits for the token may go on from here.
  void (*let_go)(std::uint64_t token) = nullptr;
  // The calling thread waited for the token and goes on.
  void (*went_on)(std::uint64_t token) = nullptr;
  // The calling thread looked at so many handles to choose victims.
  void (*chose)(std::uint64_t candidates) = nullptr;
  // 1: no byte of pinned memory is ever read, so that it needs no pages.
  int (*is_phantom)() = nullptr;
};

inline std::atomic<const HostTimeListener*> host_time_listener{nullptr};

inline void NoteChecksummed(Bytes bytes) {
  if (const auto* listener = host_time_listener.load()) {
    listener->checksummed(bytes);
  }
}

// `waited_for`: the condition variable, or whatever both sides know.
inline void NoteLetGo(const void* waited_for) {
  if (const auto* listener = host_time_listener.load()) {
    listener->let_go(reinterpret_cast<std::uintptr_t>(waited_for));
  }
}

inline void NoteWentOn(const void* waited_for) {
  if (const auto* listener = host_time_listener.load()) {
    listener->went_on(reinterpret_cast<std::uintptr_t>(waited_for));
  }
}

inline void NoteChose(std::uint64_t candidates) {
  const auto* listener = host_time_listener.load();
  if (listener != nullptr && listener->chose != nullptr) {
    listener->chose(candidates);
  }
}

inline bool PinnedMemoryIsPhantom() {
  const auto* listener = host_time_listener.load();
  return listener != nullptr && listener->is_phantom != nullptr &&
         listener->is_phantom() != 0;
}

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BASE_HOST_TIME_H_
