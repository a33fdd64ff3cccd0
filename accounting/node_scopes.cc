// SPDX-License-Identifier: Apache-2.0
#include "accounting/node_scopes.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "allocator/base/mutex.h"
#include "allocator/base/thread_local.h"

namespace stratalloc {
namespace {

constexpr std::size_t kMostChanges = 65536;
constexpr std::size_t kMostEnded = 256;

// From `node` on.
struct Change {
  std::uint64_t node;
  ScopeId scope;
};

// Of one thread. The last change is apart until a node was made after it: most
// scopes make none, and then nothing is kept and nothing locked.
class Intervals {
 public:
  void Begin(std::uint64_t next, ScopeId scope) {
    if (next == last_node_.load(std::memory_order_relaxed)) {
      // Nobody can ask for it: that node is not made.
      last_scope_.store(scope, std::memory_order_relaxed);
      return;
    }
    MutexLock lock(mutex_);
    const Change last = Last();
    if (changes_.empty() || changes_.back().scope != last.scope) {
      if (changes_.size() == kMostChanges) changes_.pop_front();
      changes_.push_back(last);
    }
    last_node_.store(next, std::memory_order_relaxed);
    last_scope_.store(scope, std::memory_order_relaxed);
  }
  std::optional<ScopeId> Find(std::uint64_t node) {
    MutexLock lock(mutex_);
    if (node >= Last().node) return Last().scope;
    const auto after = std::upper_bound(
        changes_.begin(), changes_.end(), node,
        [](std::uint64_t n, const Change& change) { return n < change.node; });
    if (after == changes_.begin()) return std::nullopt;
    return std::prev(after)->scope;
  }

 private:
  Change Last() const {
    return {last_node_.load(std::memory_order_relaxed),
            last_scope_.load(std::memory_order_relaxed)};
  }

  Mutex mutex_{LockRank::kFrames};
  std::deque<Change> changes_ GUARDED_BY(mutex_);
  // Written by the thread alone.
  std::atomic<std::uint64_t> last_node_{0};
  std::atomic<ScopeId> last_scope_{kRootScope};
};

class Threads {
 public:
  static Threads& Get() {
    static Threads* const threads = new Threads();
    return *threads;
  }

  Intervals* Add(std::uint64_t thread) {
    MutexLock lock(mutex_);
    std::shared_ptr<Intervals>& made = all_[thread];
    if (made == nullptr) made = std::make_shared<Intervals>();
    return made.get();
  }
  void End(const Intervals* intervals) {
    MutexLock lock(mutex_);
    const auto it = std::find_if(
        all_.begin(), all_.end(),
        [&](const auto& entry) { return entry.second.get() == intervals; });
    if (it == all_.end()) return;
    ended_.push_back(it->first);
    if (ended_.size() <= kMostEnded) return;
    all_.erase(ended_.front());
    ended_.pop_front();
  }
  // Whoever looks into it keeps it.
  std::shared_ptr<Intervals> Find(std::uint64_t thread) {
    MutexLock lock(mutex_);
    const auto it = all_.find(thread);
    return it == all_.end() ? nullptr : it->second;
  }

 private:
  // A leaf of its own: nobody holds it and an Intervals' together.
  Mutex mutex_{LockRank::kFrames};
  std::unordered_map<std::uint64_t, std::shared_ptr<Intervals>> all_
      GUARDED_BY(mutex_);
  std::deque<std::uint64_t> ended_ GUARDED_BY(mutex_);
};

STRATALLOC_FAST_THREAD_LOCAL Intervals* mine = nullptr;

[[gnu::noinline]] Intervals* MakeMine(const NodeScopes::Numbers& numbers) {
  static ThreadEnd& end = *new ThreadEnd([](void* intervals) {
    Threads::Get().End(static_cast<Intervals*>(intervals));
    mine = nullptr;
  });
  mine = Threads::Get().Add(numbers.thread());
  end.Await(mine);
  return mine;
}

}  // namespace

constinit std::atomic<const NodeScopes::Numbers*> NodeScopes::numbers_{nullptr};

void NodeScopes::BeginAt(std::uint64_t next, ScopeId scope,
                         const Numbers& numbers) {
  Intervals* const intervals = mine != nullptr ? mine : MakeMine(numbers);
  intervals->Begin(next, scope);
}

std::optional<ScopeId> NodeScopes::Find(std::uint64_t thread,
                                        std::uint64_t node) {
  const std::shared_ptr<Intervals> found = Threads::Get().Find(thread);
  return found == nullptr ? std::nullopt : found->Find(node);
}

}  // namespace stratalloc
