// SPDX-License-Identifier: Apache-2.0
//
// The checker: what the simulator makes of an access or of memory that goes
// away, as sentences. README.md, "What is reported", lists the kinds.

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {
namespace {

struct Found {
  Conflict conflict;
  uint64_t address = 0;  // of the first byte, as the later operation sees it
  uint64_t end = 0;
};

// Conflicts of one call, one entry per earlier operation: an operation that
// touched many small pieces of a range is reported once.
class Conflicts {
 public:
  void Add(const Conflict& conflict, const Segment& segment) {
    const uint64_t address = segment.address + (conflict.start - segment.line);
    const uint64_t end = address + conflict.bytes;
    auto [entry, is_new] =
        entries_.try_emplace({conflict.earlier.stream, conflict.earlier.number},
                             Found{conflict, address, end});
    if (is_new) return;
    Found& known = entry->second;
    known.address = std::min(known.address, address);
    known.end = std::max(known.end, end);
    known.conflict.earlier_wrote |= conflict.earlier_wrote;
    known.conflict.earlier.freed |= conflict.earlier.freed;
  }
  const auto& entries() const { return entries_; }

 private:
  std::map<std::pair<size_t, uint64_t>, Found> entries_;
};

const char* Verb(bool write) { return write ? " writes" : " reads"; }

std::string Hex(uint64_t number) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%llx",
                static_cast<unsigned long long>(number));
  return text;
}

const char* KindOfRace(const Conflict& conflict, Use use) {
  if (use == Use::kFirstWrite || conflict.earlier.freed) {
    return kind::kUseAfterFree;
  }
  return use == Use::kRead && conflict.earlier.copy_in ? kind::kUseBeforeCopyIn
                                                       : kind::kRace;
}

}  // namespace

std::vector<Segment> Simulator::Segments(uint64_t address,
                                         uint64_t bytes) const {
  std::vector<Segment> segments;
  const uint64_t end = address + bytes;
  if (!arena.IsDevice(address)) {
    segments.push_back(Segment{address, bytes, address, 0});
    return segments;
  }
  while (address < end) {
    uint64_t start = 0;
    const Mapping* mapping = addresses.FindMapping(address, &start);
    Segment segment{address, end - address, address, 0};
    if (mapping != nullptr) {
      segment.bytes = std::min(end, start + mapping->bytes) - address;
      segment.mapping = mapping->serial;
      // Memory that did not come from a handle of this process has no place
      // on the line but its address.
      if (mapping->extent->line != 0) {
        segment.line = mapping->extent->line + (address - start);
      }
    }
    segments.push_back(segment);
    address += segment.bytes;
  }
  return segments;
}

std::string Simulator::BlockText(uint64_t address, uint64_t bytes) const {
  std::string text = RangeText(address, bytes);
  uint64_t start = 0;
  if (const Mapping* mapping = addresses.FindMapping(address, &start)) {
    text += mapping->extent->from_malloc
                ? " of the allocation at " + Hex(start)
                : " of handle " + Hex(mapping->extent->id);
  } else if (host.Find(address, &start) != nullptr) {
    text += " of the pinned host range at " + Hex(start);
  } else if (const Unmapping* gone = addresses.FindUnmapping(address, &start)) {
    text += " of what was handle " + Hex(gone->extent);
  } else {
    return text;
  }
  return text + " at offset " + std::to_string(address - start);
}

void Simulator::NoteAccess(Stream* stream, const VectorClock& past,
                           uint64_t number, const std::string& name,
                           uint64_t address, uint64_t bytes, Use use) {
  const auto ordered = [&](const Stamp& earlier) {
    return past.Covers(earlier.stream, earlier.number) ||
           streams.IsObserved(earlier.stream, earlier.number) ||
           (earlier.stream == stream->index && earlier.number <= number);
  };
  const bool write = use != Use::kRead;
  Stamp stamp;
  stamp.stream = stream->index;
  stamp.number = number;
  stamp.copy_in = use == Use::kCopyIn;
  stamp.operation = std::make_shared<const OperationName>(
      OperationName{name, stream->Name(), number - stream->base});
  Conflicts conflicts;
  for (const Segment& segment : Segments(address, bytes)) {
    stamp.mapping = segment.mapping;
    log.Note(segment.line, segment.bytes, write, stamp, ordered,
             [&](const Conflict& each) { conflicts.Add(each, segment); });
  }
  for (const auto& [key, each] : conflicts.entries()) {
    const Conflict& conflict = each.conflict;
    const OperationName& earlier = *conflict.earlier.operation;
    const char* const kind = KindOfRace(conflict, use);
    violations.Add(
        kind,
        stamp.operation->Text() + Verb(write) + " " +
            BlockText(each.address, each.end - each.address) + ", which " +
            earlier.Text() + Verb(conflict.earlier_wrote) +
            (kind == kind::kUseAfterFree
                 ? ", the block was freed and handed out again in between"
                 : "") +
            ", and nothing orders the two; missing edge: record an event on " +
            earlier.stream + " after operation " +
            std::to_string(earlier.number) + " and make " + stream->Name() +
            " wait for it" +
            (kind == kind::kUseAfterFree ? " before the block is used again "
                                           "(record_stream)"
                                         : ""));
  }
  if (log.IsLarge()) {
    log.Sweep([&](const Stamp& earlier) {
      return streams.hosts().AllCover(earlier.stream, earlier.number);
    });
  }
}

bool Simulator::HasPendingWrite(uint64_t address, uint64_t bytes) {
  for (const Segment& segment : Segments(address, bytes)) {
    if (log.HasWrite(segment.line, segment.bytes, [&](const Stamp& earlier) {
          return streams.IsObserved(earlier.stream, earlier.number);
        })) {
      return true;
    }
  }
  return false;
}

void Simulator::CheckHolds(const std::string& what, uint64_t address,
                           uint64_t bytes, bool write, bool own) {
  std::string name;
  if (!Holds::Conflict(address, bytes, write, own, &name)) return;
  violations.Add(own ? kind::kUnmapWhilePending : kind::kRace,
                 what + (own ? " takes" : Verb(write)) + " " +
                     BlockText(address, bytes) + (own ? " away" : "") +
                     " while " + name +
                     " is computing on it; missing edge: synchronise the "
                     "stream of " +
                     name + " first");
}

void Simulator::ForgetRange(const std::string& what,
                            const std::vector<Segment>& segments) {
  Conflicts conflicts;
  for (const Segment& segment : segments) {
    log.Forget(
        segment.line, segment.bytes, segment.mapping,
        [&](const Stamp& earlier) {
          return streams.IsObserved(earlier.stream, earlier.number);
        },
        [&](const Conflict& each) { conflicts.Add(each, segment); });
  }
  for (const auto& [key, each] : conflicts.entries()) {
    const OperationName& earlier = *each.conflict.earlier.operation;
    violations.Add(
        arena.IsDevice(each.address) ? kind::kUnmapWhilePending
                                     : kind::kHostFreeInFlight,
        what + " takes " + BlockText(each.address, each.end - each.address) +
            " away, which " + earlier.Text() +
            Verb(each.conflict.earlier_wrote) +
            ", and nothing proves that it has finished; missing edge: "
            "synchronise " +
            earlier.stream + ", or an event recorded on it after operation " +
            std::to_string(earlier.number) + ", first");
  }
}

}  // namespace cudasim
