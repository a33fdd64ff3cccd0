// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/accesses.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace cudasim {

std::string OperationName::Text() const {
  return name + " on " + stream + " (operation " + std::to_string(number) + ")";
}

void AccessLog::CutAt(uint64_t at) {
  auto next = pieces_.upper_bound(at);
  if (next == pieces_.begin()) return;
  auto found = std::prev(next);
  if (found->first == at || found->second.end <= at) return;
  Piece upper = found->second;
  found->second.end = at;
  pieces_.emplace_hint(next, at, std::move(upper));
}

void AccessLog::ReportUnordered(uint64_t start, const Piece& piece, bool reads,
                                const Ordered& ordered, const Report& report) {
  const uint64_t bytes = piece.end - start;
  if (piece.write.number != 0 && !ordered(piece.write)) {
    report(Conflict{start, bytes, piece.write, true});
  }
  if (!reads) return;
  for (const Stamp& read : piece.reads) {
    if (!ordered(read)) report(Conflict{start, bytes, read, false});
  }
}

void AccessLog::Write(uint64_t start, uint64_t end, const Stamp& stamp) {
  auto each = pieces_.lower_bound(start);
  uint64_t merged_from = start;  // plain pieces become one
  while (each != pieces_.end() && each->first < end) {
    Piece& piece = each->second;
    const auto keep = [&](const Stamp& known) {
      if (known.number != 0 && known.mapping != stamp.mapping) {
        piece.older.push_back(known);
      }
    };
    keep(piece.write);
    for (const Stamp& read : piece.reads) keep(read);
    if (piece.older.empty()) {
      each = pieces_.erase(each);
      continue;
    }
    piece.write = stamp;
    piece.reads.clear();
    if (merged_from < each->first) {
      pieces_.emplace_hint(each, merged_from,
                           Piece{each->first, stamp, {}, {}});
    }
    merged_from = piece.end;
    ++each;
  }
  if (merged_from < end) {
    pieces_.emplace_hint(each, merged_from, Piece{end, stamp, {}, {}});
  }
}

void AccessLog::Note(uint64_t start, uint64_t bytes, bool write,
                     const Stamp& stamp, const Ordered& ordered,
                     const Report& report) {
  if (bytes == 0) return;
  const uint64_t end = start + bytes;
  CutAt(start);
  CutAt(end);
  auto each = pieces_.lower_bound(start);
  if (write) {
    for (; each != pieces_.end() && each->first < end; ++each) {
      ReportUnordered(each->first, each->second, true, ordered, report);
    }
    Write(start, end, stamp);
    return;
  }
  uint64_t at = start;
  while (at < end) {
    if (each == pieces_.end() || each->first > at) {
      const uint64_t gap_end =
          each == pieces_.end() ? end : std::min(end, each->first);
      pieces_.emplace_hint(each, at, Piece{gap_end, Stamp{}, {stamp}, {}});
      at = gap_end;
      continue;
    }
    Piece& piece = each->second;
    ReportUnordered(each->first, piece, false, ordered, report);
    auto same = std::find_if(
        piece.reads.begin(), piece.reads.end(), [&](const Stamp& read) {
          return read.stream == stamp.stream && read.mapping == stamp.mapping;
        });
    if (same != piece.reads.end()) {
      *same = stamp;  // a later read of the same stream stands for both
    } else {
      piece.reads.push_back(stamp);
    }
    at = piece.end;
    ++each;
  }
}

void AccessLog::Forget(uint64_t start, uint64_t bytes, uint64_t mapping,
                       const Ordered& ordered, const Report& report) {
  if (bytes == 0) return;
  const uint64_t end = start + bytes;
  CutAt(start);
  CutAt(end);
  auto each = pieces_.lower_bound(start);
  while (each != pieces_.end() && each->first < end) {
    Piece& piece = each->second;
    const auto drop = [&](const Stamp& known, bool wrote) {
      if (known.number == 0 || known.mapping != mapping) return false;
      if (!ordered(known)) {
        report(Conflict{each->first, piece.end - each->first, known, wrote});
      }
      return true;
    };
    if (drop(piece.write, true)) piece.write = Stamp{};
    std::erase_if(piece.reads,
                  [&](const Stamp& read) { return drop(read, false); });
    std::erase_if(piece.older,
                  [&](const Stamp& known) { return drop(known, false); });
    each = piece.empty() ? pieces_.erase(each) : std::next(each);
  }
}

void AccessLog::MarkFreed(uint64_t start, uint64_t bytes) {
  if (bytes == 0) return;
  CutAt(start);
  CutAt(start + bytes);
  for (auto each = pieces_.lower_bound(start);
       each != pieces_.end() && each->first < start + bytes; ++each) {
    each->second.write.freed = true;
    for (Stamp& read : each->second.reads) read.freed = true;
  }
}

bool AccessLog::HasWrite(uint64_t start, uint64_t bytes,
                         const Ordered& ordered) const {
  auto each = pieces_.upper_bound(start);
  if (each != pieces_.begin()) --each;
  for (; each != pieces_.end() && each->first < start + bytes; ++each) {
    const Piece& piece = each->second;
    if (piece.end > start && piece.write.number != 0 && !ordered(piece.write)) {
      return true;
    }
  }
  return false;
}

void AccessLog::Sweep(const Ordered& ordered) {
  for (auto each = pieces_.begin(); each != pieces_.end();) {
    Piece& piece = each->second;
    if (piece.write.number != 0 && ordered(piece.write)) {
      piece.write = Stamp{};
    }
    std::erase_if(piece.reads, ordered);
    std::erase_if(piece.older, ordered);
    each = piece.empty() ? pieces_.erase(each) : std::next(each);
  }
  limit_ = std::max<size_t>(4096, 2 * pieces_.size());
}

}  // namespace cudasim
