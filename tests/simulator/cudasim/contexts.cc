// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/contexts.h"

#include <atomic>
#include <cstdlib>

namespace cudasim {
namespace {

constexpr int kDevices = 16;

std::atomic<bool> initialized{false};
std::atomic<bool> down{false};
std::atomic<bool> linked_in{false};
std::atomic<bool> kept[kDevices];
std::atomic<int> retained[kDevices];

}  // namespace

void InitializeDriver() {
  if (initialized.load(std::memory_order_relaxed)) return;
  // As CUDA does: what is destroyed at exit after this handler, because it was
  // made before this moment, finds no driver any more.
  if (!initialized.exchange(true)) std::atexit(ShutDownDriver);
}

bool IsDriverInitialized() {
  return initialized.load(std::memory_order_relaxed);
}

void ShutDownDriver() { down.store(true); }

bool IsDriverDown() { return down.load(std::memory_order_relaxed); }

void RaiseDriverForTesting() { down.store(false); }

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
