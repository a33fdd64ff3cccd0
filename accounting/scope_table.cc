// SPDX-License-Identifier: Apache-2.0
#include "accounting/scope_table.h"

#include <pthread.h>

#include <deque>
#include <unordered_map>

#include "allocator/base/mutex.h"
#include "allocator/events/event_recorder.h"

namespace stratalloc {
namespace {

class ScopeTable {
 public:
  static ScopeTable& Get() {
    static ScopeTable* const table =
        new ScopeTable();  // read until the process ends
    return *table;
  }

  ScopeId Intern(std::string_view path) {
    if (path.empty()) return kRootScope;
    MutexLock lock(mutex_);
    return InternLocked(path);
  }

  std::string Name(ScopeId scope) {
    if (scope == kRootScope) return "(no scope)";
    MutexLock lock(mutex_);
    const std::uint32_t index = Raw(scope);
    if (index < names_.size()) return names_[index];
    return "scope #" + std::to_string(index);
  }

  ScopeId RecomputationOf(ScopeId scope) {
    if (scope == kRootScope || scope == kOtherScopes) return scope;
    MutexLock lock(mutex_);
    if (Raw(scope) >= names_.size()) return scope;
    const auto found = recomputations_.find(scope);
    if (found != recomputations_.end()) return found->second;
    const ScopeId made =
        InternLocked(names_[Raw(scope)] + std::string("/recomputation"));
    recomputations_.emplace(scope, made);
    return made;
  }

  int Count() {
    MutexLock lock(mutex_);
    return static_cast<int>(names_.size());
  }
  std::uint64_t NotInterned() {
    MutexLock lock(mutex_);
    return not_interned_;
  }

 private:
  // A child has the table as it was between two changes, and its lock is open:
  // whoever held it in the parent is not there to open it.
  ScopeTable() {
    pthread_atfork(&ScopeTable::BeforeFork, &ScopeTable::AfterFork,
                   &ScopeTable::AfterFork);
  }
  // Across the fork, which clang cannot see.
  static void BeforeFork() STRATALLOC_TS(no_thread_safety_analysis) {
    Get().mutex_.Lock();
  }
  static void AfterFork() STRATALLOC_TS(no_thread_safety_analysis) {
    Get().mutex_.Unlock();
  }

  ScopeId InternLocked(std::string_view path) REQUIRES(mutex_) {
    const auto found = ids_.find(path);
    if (found != ids_.end()) return found->second;
    if (names_.size() >= kMostScopes ||
        path.size() > kMostScopeNames - name_bytes_) {
      ++not_interned_;
      return kOtherScopes;
    }
    name_bytes_ += path.size();
    const auto id = ScopeId{static_cast<std::uint32_t>(names_.size())};
    names_.emplace_back(path);
    ids_.emplace(names_.back(), id);
    EventRecorder::Name(NameKind::kScope, Raw(id), path);
    return id;
  }

  Mutex mutex_{LockRank::kScopes};
  // A deque: `ids_` keeps views of the names, which must not move.
  std::deque<std::string> names_ GUARDED_BY(mutex_){std::string(),
                                                    "(other scopes)"};
  std::unordered_map<std::string_view, ScopeId> ids_ GUARDED_BY(mutex_);
  std::unordered_map<ScopeId, ScopeId> recomputations_ GUARDED_BY(mutex_);
  Bytes name_bytes_ GUARDED_BY(mutex_) = 0;
  std::uint64_t not_interned_ GUARDED_BY(mutex_) = 0;
};

}  // namespace

ScopeId InternScope(std::string_view path) {
  return ScopeTable::Get().Intern(path);
}
std::string ScopeName(ScopeId scope) { return ScopeTable::Get().Name(scope); }
ScopeId RecomputationOf(ScopeId scope) {
  return ScopeTable::Get().RecomputationOf(scope);
}
int ScopeCount() { return ScopeTable::Get().Count(); }
std::uint64_t ScopesNotInterned() { return ScopeTable::Get().NotInterned(); }

}  // namespace stratalloc
