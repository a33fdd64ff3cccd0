// SPDX-License-Identifier: Apache-2.0

#include "tests/cudasim/contexts.h"

#include <atomic>

namespace cudasim {
namespace {

constexpr int kDevices = 16;

std::atomic<bool> initialized{false};
std::atomic<bool> linked_in{false};
std::atomic<bool> kept[kDevices];
std::atomic<int> retained[kDevices];

}  // namespace

void InitializeDriver() {
  if (!initialized.load(std::memory_order_relaxed)) initialized.store(true);
}

bool IsDriverInitialized() {
  return initialized.load(std::memory_order_relaxed);
}

void KeepPrimaryContext(int device) {
  if (!kept[device].load(std::memory_order_relaxed)) kept[device].store(true);
}

void RetainPrimaryContext(int device) { retained[device].fetch_add(1); }

bool ReleasePrimaryContext(int device) {
  int count = retained[device].load();
  while (count > 0) {
    if (retained[device].compare_exchange_weak(count, count - 1)) return true;
  }
  return false;
}

bool IsPrimaryContextActive(int device) {
  return kept[device].load() || retained[device].load() > 0;
}

void BeLinkedIn() {
  linked_in.store(true);
  InitializeDriver();
  KeepPrimaryContext(0);
}

bool IsLinkedIn() { return linked_in.load(std::memory_order_relaxed); }

}  // namespace cudasim
