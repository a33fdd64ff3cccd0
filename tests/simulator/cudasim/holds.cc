// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/holds.h"

#include <atomic>
#include <memory>
#include <thread>

namespace cudasim {
namespace {

// Held for a few nanoseconds, nearly always by the slot's own thread.
class SpinLock {
 public:
  void lock() {
    while (taken_.test_and_set(std::memory_order_acquire)) {
      std::this_thread::yield();
    }
  }
  void unlock() { taken_.clear(std::memory_order_release); }

 private:
  std::atomic_flag taken_;
};

struct Hold {
  std::string name;
  size_t first = 0;  // of its ranges
  bool open = false;
};

// The holds of one thread, innermost last. Vectors and strings keep their
// capacity, so that a hold allocates nothing after the first few.
struct alignas(64) Slot {
  SpinLock mu;
  std::vector<cudasim_access> ranges;
  std::vector<Hold> holds;
  size_t depth = 0;
  bool owned = true;  // under Slots::mu
};

struct Slots {
  std::mutex mu;
  std::vector<std::unique_ptr<Slot>> all;  // as many as threads at one time

  static Slots& Get() {
    static Slots& slots = *new Slots;  // used from exit handlers
    return slots;
  }
  Slot* Take() {
    std::lock_guard<std::mutex> lock(mu);
    for (const auto& slot : all) {
      if (slot->owned) continue;
      slot->owned = true;
      return slot.get();
    }
    all.push_back(std::make_unique<Slot>());
    return all.back().get();
  }
  void GiveBack(Slot* slot) {
    std::lock_guard<std::mutex> lock(mu);
    slot->owned = false;
  }
};

// Gives the slot back when its thread ends.
struct Owner {
  Slot* slot = nullptr;
  ~Owner() {
    if (slot != nullptr) Slots::Get().GiveBack(slot);
    slot = nullptr;
  }
};

thread_local Owner owner;

Slot& Mine() {
  if (owner.slot == nullptr) owner.slot = Slots::Get().Take();
  return *owner.slot;
}

}  // namespace

long Holds::Add(const char* name, const cudasim_access* accesses, int count) {
  Slot& slot = Mine();
  std::lock_guard<SpinLock> lock(slot.mu);
  if (slot.depth == slot.holds.size()) slot.holds.emplace_back();
  Hold& hold = slot.holds[slot.depth++];
  hold.name.assign(name);
  hold.first = slot.ranges.size();
  hold.open = true;
  slot.ranges.insert(slot.ranges.end(), accesses, accesses + count);
  return static_cast<long>(slot.depth);
}

void Holds::Release(long token) {
  Slot& slot = Mine();
  std::lock_guard<SpinLock> lock(slot.mu);
  const auto index = static_cast<size_t>(token) - 1;
  if (token < 1 || index >= slot.depth) return;
  slot.holds[index].open = false;
  // Holds are released innermost first, but need not be.
  while (slot.depth > 0 && !slot.holds[slot.depth - 1].open) {
    slot.ranges.resize(slot.holds[--slot.depth].first);
  }
}

void Holds::Clear() {
  Slots& slots = Slots::Get();
  std::lock_guard<std::mutex> all(slots.mu);
  for (const auto& slot : slots.all) {
    std::lock_guard<SpinLock> lock(slot->mu);
    slot->depth = 0;
    slot->ranges.clear();
  }
}

bool Holds::Conflict(uint64_t address, uint64_t bytes, bool write, bool own,
                     std::string* name) {
  Slots& slots = Slots::Get();
  std::lock_guard<std::mutex> all(slots.mu);
  for (const auto& slot : slots.all) {
    if (!own && slot.get() == owner.slot) continue;
    std::lock_guard<SpinLock> lock(slot->mu);
    for (size_t i = 0; i < slot->depth; ++i) {
      const Hold& hold = slot->holds[i];
      if (!hold.open) continue;
      const size_t end =
          i + 1 < slot->depth ? slot->holds[i + 1].first : slot->ranges.size();
      for (size_t at = hold.first; at < end; ++at) {
        const cudasim_access& each = slot->ranges[at];
        if ((write || each.write != 0) && address < each.address + each.bytes &&
            each.address < address + bytes) {
          *name = hold.name;
          return true;
        }
      }
    }
  }
  return false;
}

}  // namespace cudasim
