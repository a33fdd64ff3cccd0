// SPDX-License-Identifier: Apache-2.0
#include "allocator/state/pin_poll.h"

#include <atomic>

namespace stratalloc {
namespace {

std::atomic<PinPoll::Poll> installed_poll{nullptr};
std::atomic<PinPoll::Asked> under_way{nullptr};
thread_local bool running = false;

}  // namespace

void PinPoll::Use(Poll poll, Asked asked) {
  under_way.store(asked, std::memory_order_release);
  installed_poll.store(poll, std::memory_order_release);
}

void PinPoll::Run() {
  const Poll poll = installed_poll.load(std::memory_order_acquire);
  if (poll == nullptr) return;
  running = true;
  poll();
  running = false;
}

bool PinPoll::UnderWay() {
  const Asked asked = under_way.load(std::memory_order_acquire);
  return asked != nullptr && asked() != 0;
}

bool PinPoll::IsRunning() { return running; }

}  // namespace stratalloc
