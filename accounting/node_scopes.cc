// SPDX-License-Identifier: Apache-2.0
#include "accounting/node_scopes.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
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
    if (changes_.empty() || At(changes_.size() - 1).scope != last.scope) {
      Append(last);
    }
    last_node_.store(next, std::memory_order_relaxed);
    last_scope_.store(scope, std::memory_order_relaxed);
  }
  // `near`: which change was found last; a hint, renewed here. Backward runs
  // through the numbers downwards, so the next node is of the same change or of
  // the one before.
  std::optional<ScopeId> Find(std::uint64_t node, std::size_t* near) {
    MutexLock lock(mutex_);
    const Change last = Last();
    if (node >= last.node) return last.scope;
    if (changes_.empty() || node < At(0).node) return std::nullopt;
    std::size_t at = *near;
    if (!Holds(at, node) && !Holds(--at, node)) at = Search(node);
    *near = at;
    return At(at).scope;
  }

 private:
  // From the oldest one.
  const Change& At(std::size_t i) const REQUIRES(mutex_) {
    i += oldest_;
    return changes_[i < kMostChanges ? i : i - kMostChanges];
  }
  void Append(Change change) REQUIRES(mutex_) {
    if (changes_.size() < kMostChanges) return changes_.push_back(change);
    changes_[oldest_] = change;
    oldest_ = (oldest_ + 1) % kMostChanges;
  }
  bool Holds(std::size_t at, std::uint64_t node) const REQUIRES(mutex_) {
    return at < changes_.size() && At(at).node <= node &&
           (at + 1 == changes_.size() || node < At(at + 1).node);
  }
  // REQUIRES: the node is not before the first change.
  std::size_t Search(std::uint64_t node) const REQUIRES(mutex_) {
    std::size_t at = 0, above = changes_.size();
    while (above - at > 1) {
      const std::size_t middle = at + (above - at) / 2;
      (At(middle).node <= node ? at : above) = middle;
    }
    return at;
  }
  Change Last() const {
    return {last_node_.load(std::memory_order_relaxed),
            last_scope_.load(std::memory_order_relaxed)};
  }

  Mutex mutex_{LockRank::kFrames};
  std::vector<Change> changes_ GUARDED_BY(mutex_);  // a ring once it is full
  std::size_t oldest_ GUARDED_BY(mutex_) = 0;
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
  // Whoever looks into it keeps it (Looked).
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

// Whose numbers this thread looked up last: those of one thread, node by node,
// while its graph is walked. Then the list of threads is not asked, nor its
// lock.
struct Looked {
  std::uint64_t thread = 0;
  std::shared_ptr<Intervals> intervals;  // null: nobody's yet
  std::size_t near = 0;
};
STRATALLOC_FAST_THREAD_LOCAL Looked* looked = nullptr;

[[gnu::noinline]] Looked* MakeLooked() {
  static ThreadEnd& end = *new ThreadEnd([](void* ended) {
    delete static_cast<Looked*>(ended);
    looked = nullptr;
  });
  looked = new Looked();
  end.Await(looked);
  return looked;
}

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
  Looked& last = *(looked != nullptr ? looked : MakeLooked());
  if (last.intervals == nullptr || last.thread != thread) {
    std::shared_ptr<Intervals> found = Threads::Get().Find(thread);
    if (found == nullptr) return std::nullopt;
    last = {thread, std::move(found), 0};
  }
  return last.intervals->Find(node, &last.near);
}

}  // namespace stratalloc
