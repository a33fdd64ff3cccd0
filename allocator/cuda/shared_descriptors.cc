// SPDX-License-Identifier: Apache-2.0
#include "allocator/cuda/shared_descriptors.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <set>

#include "allocator/base/mutex.h"

namespace stratalloc {
namespace {

struct Table {
  Mutex mutex{LockRank::kShares};
  std::set<int> shared GUARDED_BY(mutex);

  static Table& Get() {
    // In the child of a fork the table may be half changed, and its lock held
    // by a thread that is not there: it is left, and another one made.
    static const int once =
        pthread_atfork(nullptr, nullptr, [] { current.store(nullptr); });
    (void)once;
    Table* found = current.load(std::memory_order_acquire);
    if (found != nullptr) return *found;
    auto* const made = new Table;
    if (current.compare_exchange_strong(found, made)) return *made;
    delete made;
    return *found;
  }

 private:
  static constinit std::atomic<Table*> current;
};

constinit std::atomic<Table*> Table::current{nullptr};

}  // namespace

void SharedDescriptors::Add(int descriptor) {
  Table& table = Table::Get();
  MutexLock lock(table.mutex);
  table.shared.insert(descriptor);
}

void SharedDescriptors::Close(int descriptor) {
  Table& table = Table::Get();
  {
    MutexLock lock(table.mutex);
    table.shared.erase(descriptor);
  }
  close(descriptor);
}

std::size_t SharedDescriptors::Count() {
  Table& table = Table::Get();
  MutexLock lock(table.mutex);
  return table.shared.size();
}

bool SharedDescriptors::Use(int descriptor, const std::function<void()>& use) {
  Table& table = Table::Get();
  MutexLock lock(table.mutex);
  if (!table.shared.contains(descriptor)) return false;
  use();
  return true;
}

}  // namespace stratalloc
