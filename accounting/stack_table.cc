// SPDX-License-Identifier: Apache-2.0
#include "accounting/stack_table.h"

#include <deque>
#include <string>
#include <unordered_map>

#include "allocator/base/mutex.h"
#include "allocator/events/event_recorder.h"

namespace stratalloc {
namespace {

struct Frame {
  std::string text;
  bool own = false;
};

struct Call {
  SiteId caller, line;
  FrameNumber frame = 0;
};

struct StackTable {
  Mutex mutex{LockRank::kScopes};
  // Deques: the maps keep views of the texts, which must not move.
  std::deque<Frame> frames GUARDED_BY(mutex){Frame{}};  // 0: none
  std::deque<Call> calls GUARDED_BY(mutex);             // kFirstCall is [0]
  // Apart, since the same text may be a library's here and not there.
  std::unordered_map<std::string_view, FrameNumber> numbers[2] GUARDED_BY(
      mutex);
  std::unordered_map<std::uint64_t, SiteId> ids GUARDED_BY(mutex);
  std::uint64_t refused GUARDED_BY(mutex) = 0;
};

StackTable& GetStackTable() {
  static StackTable* const table =
      new StackTable();  // read until the process ends
  return *table;
}

std::uint64_t KeyOf(SiteId caller, FrameNumber frame) {
  return std::uint64_t{Raw(caller)} << 32 | frame;
}

SiteId IdAt(std::size_t index) {
  return SiteId{Raw(kFirstCall) + static_cast<std::uint32_t>(index)};
}

void NameCall(SiteId id, const Call& call, const std::string& text) {
  EventRecorder::Name(NameKind::kCall, Raw(id),
                      std::to_string(Raw(call.caller)) + ' ' +
                          std::to_string(Raw(call.line)) + ' ' + text);
}

SiteId Refuse(StackTable& table) REQUIRES(table.mutex) {
  ++table.refused;
  EventRecorder::CountLostStack();
  return kNoSite;
}

}  // namespace

FrameNumber InternFrame(std::string_view text, bool own) {
  text = CutSiteText(text);
  StackTable& table = GetStackTable();
  MutexLock lock(table.mutex);
  auto& numbers = table.numbers[own ? 1 : 0];
  const auto found = numbers.find(text);
  if (found != numbers.end()) return found->second;
  if (table.frames.size() > kMostCalls) return 0;
  const auto number = static_cast<FrameNumber>(table.frames.size());
  table.frames.push_back({std::string(text), own});
  numbers.emplace(table.frames.back().text, number);
  return number;
}

SiteId InternCall(SiteId caller, FrameNumber frame) {
  StackTable& table = GetStackTable();
  const std::uint64_t key = KeyOf(caller, frame);
  std::string text;
  Call call{caller, kNoSite, frame};
  {
    MutexLock lock(table.mutex);
    const auto found = table.ids.find(key);
    if (found != table.ids.end()) return found->second;
    if (frame == 0 || table.calls.size() == kMostCalls) {
      return Refuse(table);
    }
    text = table.frames[frame].text;
    if (caller != kNoSite && !table.frames[frame].own) {
      call.line = table.calls.at(Raw(caller) - Raw(kFirstCall)).line;
    }
  }
  // The lines' table has a lock of the same rank.
  if (call.line == kNoSite) call.line = InternSite(text);
  MutexLock lock(table.mutex);
  if (const auto found = table.ids.find(key); found != table.ids.end()) {
    return found->second;  // somebody else's, since then
  }
  if (table.calls.size() == kMostCalls) return Refuse(table);
  const SiteId id = IdAt(table.calls.size());
  table.ids.emplace(key, id);
  table.calls.push_back(call);
  NameCall(id, call, text);
  return id;
}

SiteId LineOf(SiteId site) {
  if (site < kFirstCall) return site;
  StackTable& table = GetStackTable();
  MutexLock lock(table.mutex);
  const std::size_t index = Raw(site) - Raw(kFirstCall);
  return index < table.calls.size() ? table.calls[index].line : kNoSite;
}

StackCounts CountStacks() {
  StackTable& table = GetStackTable();
  MutexLock lock(table.mutex);
  return {static_cast<std::uint32_t>(table.calls.size()), table.refused};
}

void NameCalls() {
  StackTable& table = GetStackTable();
  MutexLock lock(table.mutex);
  for (std::size_t i = 0; i < table.calls.size(); ++i) {
    const Call& call = table.calls[i];
    NameCall(IdAt(i), call, table.frames[call.frame].text);
  }
}

}  // namespace stratalloc
