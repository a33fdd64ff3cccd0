// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/extents.h"

#include <algorithm>
#include <string>

#include "allocator/base/check.h"

namespace stratalloc {

void Extents::Add(std::uint64_t offset, Bytes bytes) {
  if (bytes == 0) return;
  auto next = std::lower_bound(
      ranges_.begin(), ranges_.end(), offset,
      [](const Range& range, std::uint64_t at) { return range.offset < at; });
  const bool has_previous = next != ranges_.begin();
  const auto previous = has_previous ? next - 1 : next;
  STRATALLOC_CHECK(
      (next == ranges_.end() || offset + bytes <= next->offset) &&
          (!has_previous || previous->offset + previous->bytes <= offset),
      "range of " + std::to_string(bytes) + " bytes at " +
          std::to_string(offset) + " is already free");
  total_ += bytes;
  const bool joins_next =
      next != ranges_.end() && offset + bytes == next->offset;
  if (has_previous && previous->offset + previous->bytes == offset) {
    previous->bytes += bytes;
    if (joins_next) {
      previous->bytes += next->bytes;
      ranges_.erase(next);
    }
    return;
  }
  if (joins_next) {
    next->offset = offset;
    next->bytes += bytes;
    return;
  }
  ranges_.insert(next, Range{offset, bytes});
}

std::optional<std::uint64_t> Extents::TakeLow(Bytes bytes) {
  for (auto it = ranges_.begin(); it != ranges_.end(); ++it) {
    if (it->bytes < bytes) continue;
    const std::uint64_t offset = it->offset;
    it->offset += bytes;
    it->bytes -= bytes;
    total_ -= bytes;
    if (it->bytes == 0) ranges_.erase(it);
    return offset;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> Extents::TakeHigh(Bytes bytes) {
  for (auto it = ranges_.rbegin(); it != ranges_.rend(); ++it) {
    if (it->bytes < bytes) continue;
    it->bytes -= bytes;
    total_ -= bytes;
    const std::uint64_t offset = it->offset + it->bytes;
    if (it->bytes == 0) ranges_.erase(std::next(it).base());
    return offset;
  }
  return std::nullopt;
}

Bytes Extents::largest() const {
  Bytes most = 0;
  for (const Range& range : ranges_) most = std::max(most, range.bytes);
  return most;
}

}  // namespace stratalloc
