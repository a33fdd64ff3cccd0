// SPDX-License-Identifier: Apache-2.0
#include "accounting/scope_table.h"

#include <cstdint>
#include <deque>
#include <unordered_map>

#include "allocator/base/mutex.h"

namespace stratalloc {
namespace {

struct Table {
  Mutex mutex{LockRank::kScopes};
  // A deque: `ids` keeps views of the names, which must not move.
  std::deque<std::string> names GUARDED_BY(mutex){std::string()};
  std::unordered_map<std::string_view, ScopeId> ids GUARDED_BY(mutex);
};

Table& GetTable() {
  static Table* const table = new Table();  // read until the process ends
  return *table;
}

}  // namespace

ScopeId InternScope(std::string_view path) {
  if (path.empty()) return kRootScope;
  Table& table = GetTable();
  MutexLock lock(table.mutex);
  const auto found = table.ids.find(path);
  if (found != table.ids.end()) return found->second;
  const auto id =
      static_cast<ScopeId>(static_cast<std::uint32_t>(table.names.size()));
  table.names.emplace_back(path);
  table.ids.emplace(table.names.back(), id);
  return id;
}

std::string ScopeName(ScopeId scope) {
  if (scope == kRootScope) return "(no scope)";
  Table& table = GetTable();
  MutexLock lock(table.mutex);
  const std::uint32_t index = Raw(scope);
  if (index < table.names.size()) return table.names[index];
  return "scope #" + std::to_string(index);
}

int ScopeCount() {
  Table& table = GetTable();
  MutexLock lock(table.mutex);
  return static_cast<int>(table.names.size());
}

}  // namespace stratalloc
