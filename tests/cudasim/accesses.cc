// SPDX-License-Identifier: Apache-2.0

#include "tests/cudasim/accesses.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace cudasim {

void AccessLog::CutAt(uint64_t address) {
  auto next = pieces_.upper_bound(address);
  if (next == pieces_.begin()) return;
  auto found = std::prev(next);
  if (found->first == address || found->second.end <= address) return;
  Piece upper = found->second;
  found->second.end = address;
  pieces_.emplace_hint(next, address, std::move(upper));
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

void AccessLog::Note(uint64_t address, uint64_t bytes, bool write,
                     const Stamp& stamp, const Ordered& ordered,
                     const Report& report) {
  if (bytes == 0) return;
  const uint64_t end = address + bytes;
  CutAt(address);
  CutAt(end);
  auto each = pieces_.lower_bound(address);
  if (write) {
    while (each != pieces_.end() && each->first < end) {
      ReportUnordered(each->first, each->second, true, ordered, report);
      each = pieces_.erase(each);
    }
    pieces_.emplace_hint(each, address, Piece{end, stamp, {}});
    return;
  }
  uint64_t at = address;
  while (at < end) {
    if (each == pieces_.end() || each->first > at) {
      const uint64_t gap_end =
          each == pieces_.end() ? end : std::min(end, each->first);
      pieces_.emplace_hint(each, at, Piece{gap_end, Stamp{}, {stamp}});
      at = gap_end;
      continue;
    }
    Piece& piece = each->second;
    ReportUnordered(each->first, piece, false, ordered, report);
    auto same = std::find_if(
        piece.reads.begin(), piece.reads.end(),
        [&](const Stamp& read) { return read.stream == stamp.stream; });
    if (same != piece.reads.end()) {
      *same = stamp;  // a later read of the same stream stands for both
    } else {
      piece.reads.push_back(stamp);
    }
    at = piece.end;
    ++each;
  }
}

void AccessLog::Forget(uint64_t address, uint64_t bytes, const Ordered& ordered,
                       const Report& report) {
  if (bytes == 0) return;
  const uint64_t end = address + bytes;
  CutAt(address);
  CutAt(end);
  auto each = pieces_.lower_bound(address);
  while (each != pieces_.end() && each->first < end) {
    ReportUnordered(each->first, each->second, true, ordered, report);
    each = pieces_.erase(each);
  }
}

bool AccessLog::HasWrite(uint64_t address, uint64_t bytes,
                         const Ordered& ordered) const {
  auto each = pieces_.upper_bound(address);
  if (each != pieces_.begin()) --each;
  for (; each != pieces_.end() && each->first < address + bytes; ++each) {
    const Piece& piece = each->second;
    if (piece.end > address && piece.write.number != 0 &&
        !ordered(piece.write)) {
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
    each = piece.write.number == 0 && piece.reads.empty() ? pieces_.erase(each)
                                                          : std::next(each);
  }
  limit_ = std::max<size_t>(4096, 2 * pieces_.size());
}

}  // namespace cudasim
