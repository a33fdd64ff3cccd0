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
  pages_[it->second] = {.address = address, .newest = kNever, .hint = kNever};
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
  ++pages_[At(position).page].uses;
  if (expected_ != kNever && expected_ < Oldest()) expected_ = kNever;
  if (IsPassing(At(position).page)) return AddPassing();
  const std::uint64_t next = expected_ == kNever ? kNever : UseFrom(expected_);
  if (next < position && Same(next, position)) {
    Follow(next);
  } else {
    Search(position);
  }
  return At(position).leaves;
}

// A use of a passing page. It takes the place of the one that is expected, if
// that is a passing page's, too.
bool Timeline::AddPassing() {
  if (expected_ == kNever) return false;
  std::uint64_t next = expected_;
  while (next + 1 < now_ && (At(next).made || At(next).freed)) ++next;
  if (next + 1 >= now_ || !IsPassing(At(next).page)) return false;
  At(now_ - 1).leaves = At(next).leaves;
  expected_ = next + 1;
  if (Same(next, now_ - 1)) {
    confirmed_until_ = now_ + Length();
    if (InStep()) ++run_;
  }
  return At(now_ - 1).leaves;
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
  if (change.made) {
    Page& page = pages_[At(now_ - 1).page];
    page.uses_before = page.births == 0 ? 0 : page.uses;
    page.uses = 0;
    page.births += page.births < 2 ? 1 : 0;
  }
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
  followed_ = now_;
  confirmed_until_ = now_ + Length();
  ++run_;
}

std::uint32_t Timeline::MatchBack(std::uint64_t earlier, std::uint64_t later,
                                  std::uint32_t longest) const {
  const std::uint64_t most =
      std::min<std::uint64_t>(longest, earlier - Oldest() + 1);
  std::uint32_t length = 0;
  while (length < most && earlier != kNever && Same(earlier, later)) {
    ++length;
    earlier = earlier == 0 ? kNever : UseUpTo(earlier - 1);
    later = UseUpTo(later - 1);
  }
  return length;
}

// Calls visit(position) for earlier uses of the page at `position`: the newest
// ones, and those around the followed position, since a page with many uses has
// these farther back.
template <typename Visit>
void Timeline::ForCandidates(std::uint64_t position, Visit visit) {
  std::uint64_t at = Previous(position);
  for (std::uint32_t i = 0; i < kCandidates && at != kNever; ++i) {
    visit(at);
    at = Previous(at);
  }
  if (expected_ == kNever) return;
  const std::uint64_t after = Seek(pages_[At(position).page], expected_);
  if (after == kNever || after >= position) return;
  visit(after);
  if (at = Previous(after); at != kNever) visit(at);
}

// The closest position after a use or two that were left out, else the longest
// match close by. One equal use alone says little: a pass backwards has one at
// each step, and is another part of the cycle.
std::uint64_t Timeline::BestSlip(std::uint64_t position) {
  std::uint64_t best = kNever;
  std::uint32_t best_rank = 0;
  ForCandidates(position, [&](std::uint64_t at) {
    if (!IsNear(at)) return;
    std::uint32_t rank = MatchBack(at, position, kLongestMatch);
    if (rank < 2 && !IsClose(at)) return;
    if (rank != 0 && IsClose(at)) rank += kLongestMatch;
    if (rank < best_rank || (rank == best_rank && at >= best)) return;
    best = at;
    best_rank = rank;
  });
  return best;
}

// The longest match; among equals the closest to the followed position, or the
// newest if that is not confirmed. Of full matches the longest continuation
// counts: a program that goes on with a part of its old cycle would be led to
// the end of that part each time.
Timeline::Match Timeline::BestMatch(std::uint64_t position) {
  const std::uint64_t followed = IsConfirmed() ? expected_ : position;
  const auto distance = [followed](std::uint64_t at) {
    return at > followed ? at - followed : followed - at;
  };
  Match best;
  ForCandidates(position, [&](std::uint64_t at) {
    std::uint32_t length = MatchBack(at, position, kLongestMatch);
    if (length == kLongestMatch) length = MatchBack(at, position, kWholeMatch);
    if (length == 0 || length < best.length) return;
    if (length == best.length && distance(at) >= distance(best.position)) {
      return;
    }
    best = {at, length};
  });
  return best;
}

void Timeline::Search(std::uint64_t position) {
  ++astray_;
  std::uint64_t slip = expected_ == kNever ? kNever : BestSlip(position);
  if (slip != kNever && IsClose(slip)) {
    Follow(slip);
    return;
  }
  const Match best = BestMatch(position);
  // A long match elsewhere says more than a short one close by. A short one
  // does not: each choice of experts has been made before, somewhere.
  if (slip != kNever && best.length >= kLongestMatch / 2 &&
      2 * MatchBack(slip, position, kLongestMatch) <
          std::min(best.length, kLongestMatch)) {
    slip = kNever;
  }
  if (expected_ != kNever && best.length < kLongestMatch) {
    if (slip != kNever) Follow(slip);
    if (slip != kNever || astray_ <= std::min<std::uint64_t>(kPatience, run_)) {
      return;
    }
  }
  if (expected_ != kNever || best.length != 0) ++jumps_;
  run_ = 0;
  if (best.length == 0) {
    expected_ = kNever;
    return;
  }
  run_ = std::min(best.length, kLongestMatch) - 1;
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
