// SPDX-License-Identifier: Apache-2.0
#include "tiering/policy/timeline.h"

#include <algorithm>

#include "allocator/base/check.h"

namespace stratalloc {

Timeline::Timeline(std::size_t capacity)
    : ring_(capacity), mask_(capacity - 1) {
  STRATALLOC_CHECK(capacity >= 64 && (capacity & mask_) == 0,
                   "the capacity of a timeline is a power of two");
}

bool Timeline::Same(std::uint64_t a, std::uint64_t b) const {
  const Entry &x = At(a), &y = At(b);
  return x.page == y.page && x.freed == y.freed;
}

bool Timeline::IsNear(std::uint64_t position) const {
  return expected_ != kNever && position + kSlip >= expected_ &&
         position <= expected_ + kSlip;
}

std::uint64_t Timeline::UseFrom(std::uint64_t position) const {
  while (position < now_ && !IsPlainUse(position)) ++position;
  return position < now_ ? position : kNever;
}

std::uint64_t Timeline::UseUpTo(std::uint64_t position) const {
  while (position != kNever && position >= Oldest() && !IsPlainUse(position)) {
    --position;  // kNever below 0
  }
  return position != kNever && position >= Oldest() ? position : kNever;
}

std::uint64_t Timeline::Rename(Address address) {
  if (expected_ == kNever) return kNever;
  std::uint64_t at = std::max(expected_, birth_);
  const std::uint64_t end = std::min(now_, expected_ + kBirths);
  while (at < end && !At(at).made) ++at;
  if (at >= end) return kNever;
  birth_ = at + 1;
  const std::uint32_t page = At(at).page;
  if (!LastFreed(page)) return kNever;
  const Address old = pages_[page].address;
  if (old == address) return at;
  if (const auto it = index_.find(address); it == index_.end()) {
    index_.erase(old);
  } else {
    if (!LastFreed(it->second)) return kNever;
    pages_[it->second].address = old;
    index_[old] = it->second;
  }
  pages_[page].address = address;
  index_[address] = page;
  return at;
}

bool Timeline::IsClose(std::uint64_t position) const {
  return expected_ != kNever && position >= expected_ &&
         position <= expected_ + kClose;
}

std::uint64_t Timeline::Previous(std::uint64_t position) const {
  const std::uint32_t back = At(position).previous;
  return back == 0 || position - back < Oldest() ? kNever : position - back;
}

std::uint64_t Timeline::Seek(Page& page, std::uint64_t from) {
  std::uint64_t at = page.hint >= Oldest() ? page.hint : page.newest;
  while (at < from && At(at).next != 0) at += At(at).next;
  for (std::uint64_t previous = Previous(at);
       previous != kNever && previous >= from; previous = Previous(at)) {
    at = previous;
  }
  page.hint = at;
  return at >= from ? at : kNever;
}

std::uint32_t Timeline::PageOf(Address address) {
  auto [it, is_new] = index_.try_emplace(address, 0);
  if (!is_new) return it->second;
  if (free_pages_.empty()) {
    it->second = static_cast<std::uint32_t>(pages_.size());
    pages_.emplace_back();
  } else {
    it->second = free_pages_.back();
    free_pages_.pop_back();
  }
  pages_[it->second] = {address, kNever, kNever};
  return it->second;
}

// Makes room in the ring. A page is forgotten with its newest use.
void Timeline::Forget(std::uint64_t position) {
  const std::uint32_t page = At(position).page;
  if (pages_[page].newest != position) return;
  index_.erase(pages_[page].address);
  free_pages_.push_back(page);
}

void Timeline::Append(const PageUse& use) {
  if (now_ >= ring_.size()) Forget(now_ - ring_.size());
  const std::uint32_t index = PageOf(use.page);
  Page& page = pages_[index];
  Entry entry{index, 0, 0, use.written, use.made, use.freed, false};
  if (page.newest == kNever) {
    page.hint = now_;
  } else {
    entry.previous = static_cast<std::uint32_t>(now_ - page.newest);
    At(page.newest).next = entry.previous;
  }
  page.newest = now_;
  At(now_) = entry;
  ++now_;
}

bool Timeline::Add(const PageUse& use) {
  if (use.made || use.freed) return AddChange(use);
  if (now_ != 0) {
    Entry& last = At(now_ - 1);
    if (!last.freed && pages_[last.page].address == use.page) {
      last.written |= use.written;
      return last.leaves;
    }
  }
  const std::uint64_t position = now_;
  Append(use);
  if (expected_ != kNever && expected_ < Oldest()) expected_ = kNever;
  const std::uint64_t next = expected_ == kNever ? kNever : UseFrom(expected_);
  if (next < position && Same(next, position)) {
    Follow(next);
  } else {
    Search(position);
  }
  return At(position).leaves;
}

bool Timeline::AddChange(const PageUse& change) {
  std::uint64_t expected = kNever;
  if (change.freed) {
    // Freed twice, or never used as far as is remembered: nothing ends here.
    auto it = index_.find(change.page);
    if (it == index_.end() || LastFreed(it->second)) return false;
  } else {
    expected = Rename(change.page);
  }
  Append(change);
  if (expected_ != kNever && expected_ < Oldest()) expected_ = kNever;
  if (InStep()) ++run_;
  if (expected_ != kNever && Same(expected_, now_ - 1) &&
      (change.freed || expected == expected_)) {
    ++expected_;
  }
  if (expected == kNever || expected < Oldest()) return false;
  At(now_ - 1).leaves = At(expected).leaves;
  return At(now_ - 1).leaves;
}

// The newest use is the one at `earlier` again.
void Timeline::Follow(std::uint64_t earlier) {
  At(now_ - 1).leaves = At(earlier).leaves;
  if (earlier < expected_) birth_ = earlier + 1;
  expected_ = earlier + 1;
  astray_ = 0;
  ++run_;
}

std::uint32_t Timeline::MatchBack(std::uint64_t earlier,
                                  std::uint64_t later) const {
  const std::uint64_t most =
      std::min<std::uint64_t>(kLongestMatch, earlier - Oldest() + 1);
  std::uint32_t length = 0;
  while (length < most && earlier != kNever && Same(earlier, later)) {
    ++length;
    earlier = earlier == 0 ? kNever : UseUpTo(earlier - 1);
    later = UseUpTo(later - 1);
  }
  return length;
}

// A use or two that were left out first, then a full match, then one close by,
// then the longest; among equals the
// closest to the followed position, or the newest if no position is followed.
Timeline::Match Timeline::BestMatch(std::uint64_t position) {
  Match best;
  std::uint32_t best_rank = 0;
  auto distance = [&](std::uint64_t at) {
    return at > expected_ ? at - expected_ : expected_ - at;
  };
  auto consider = [&](std::uint64_t at) {
    const std::uint32_t length = MatchBack(at, position);
    std::uint32_t rank = length;
    if (length == kLongestMatch) rank += kLongestMatch;
    if (length != 0 && IsNear(at)) rank += kLongestMatch;
    if (length != 0 && IsClose(at)) rank += 2 * kLongestMatch;
    if (rank == 0 || rank < best_rank) return;
    if (rank == best_rank &&
        (expected_ == kNever || distance(at) >= distance(best.position))) {
      return;
    }
    best = {at, length};
    best_rank = rank;
  };
  std::uint64_t at = Previous(position);
  for (std::uint32_t i = 0; i < kCandidates && at != kNever; ++i) {
    consider(at);
    at = Previous(at);
  }
  if (expected_ == kNever) return best;
  // A page with many uses has its closest ones farther back.
  const std::uint64_t after = Seek(pages_[At(position).page], expected_);
  if (after == kNever || after >= position) return best;
  consider(after);
  if (at = Previous(after); at != kNever) consider(at);
  return best;
}

void Timeline::Search(std::uint64_t position) {
  const Match best = BestMatch(position);
  ++astray_;
  const bool full = best.length == kLongestMatch;
  if (best.length != 0 && IsNear(best.position)) {
    Follow(best.position);
    return;
  }
  if (expected_ != kNever && !full && astray_ <= kPatience) return;
  if (expected_ != kNever || best.length != 0) ++jumps_;
  run_ = 0;
  if (best.length == 0) {
    expected_ = kNever;
    return;
  }
  run_ = best.length - 1;
  Follow(best.position);
}

std::uint64_t Timeline::StableLength() const {
  if (!InStep()) return 0;
  return run_ >= std::min(Length(), kStableRun) ? Length() : 0;
}

PageUse Timeline::Expected(std::uint64_t ahead) const {
  const Entry& entry = At(expected_ + ahead % Length());
  return {.page = pages_[entry.page].address,
          .written = entry.written,
          .made = entry.made,
          .freed = entry.freed,
          .leaves = entry.leaves};
}

std::uint64_t Timeline::Distance(Address page) {
  if (!HasFuture()) return kNever;
  auto it = index_.find(page);
  if (it == index_.end()) return kNever;
  const std::uint64_t at = Seek(pages_[it->second], expected_);
  return at == kNever || At(at).freed ? kNever : at - expected_;
}

std::uint64_t Timeline::Age(Address page) const {
  auto it = index_.find(page);
  return it == index_.end() ? kNever : now_ - pages_[it->second].newest - 1;
}

void Timeline::Mark(std::span<const std::uint8_t> marks) {
  STRATALLOC_CHECK(marks.size() == Length(), "one mark for each expected use");
  for (std::size_t i = 0; i < marks.size(); ++i) {
    At(expected_ + i).leaves = marks[i] != 0;
  }
}

void Timeline::ClearMarks() {
  for (Entry& entry : ring_) entry.leaves = false;
}

}  // namespace stratalloc
