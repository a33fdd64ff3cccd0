// SPDX-License-Identifier: Apache-2.0
// Timeline: the uses of pages so far, and the earlier position that the newest
// uses continue. What followed that position is the expected future.
//
// The newest uses are kept in a ring. While a use is the expected one, the
// timeline compares one entry. Otherwise it searches the earlier uses of the
// same page for the longest match of the past, up to kLongestMatch uses:
//   a use or two left out  the timeline slips, and the cycle goes on;
//   a full match elsewhere it jumps there;
//   two uses close by      it slips: more was inserted, left out or replaced;
//   else                   it holds its position for kPatience uses, and then
//                          jumps to the longest match.
// Loops, shared modules, tied weights, gradient accumulation, branches and
// several models come out of the match. There are no scopes and no hashes.
//
// Only the uses of lasting pages are followed. Passing pages are made again and
// again: gradients and temporaries, which lie at other addresses and on more or
// fewer pages each time. Their uses take the expected ones' places, as long as
// some use in each length is the expected one.
//
// A use of the same page as the use before it is the same use. Freed means
// that no block is left on the page: its bytes are dead. When that happens may
// vary, so a free never changes the followed position.
//
// A page is made by its first block. If the timeline expects that a dead page
// is made now, the new page is that one, at whatever address: an allocator
// seldom places the gradients of two steps alike. So a page is known by its
// uses, and Expected() has the address that it had last.
//
// Thread-safety: none; the caller's lock. Distance() changes hints only.
// Lifetime: pages are plain addresses and are never dereferenced.
// Errors: none. An answer that is not known is kNever, 0 or false.
// Invariants: at most capacity() uses and as many pages are remembered. No
// memory is allocated per use, only per page that was not remembered.
#ifndef STRATALLOC_TIERING_POLICY_TIMELINE_H_
#define STRATALLOC_TIERING_POLICY_TIMELINE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "allocator/base/bytes.h"

namespace stratalloc {

struct PageUse {
  Address page = 0;
  bool written = false;
  bool made = false;    // the first block on the page was handed out
  bool freed = false;   // no use: the last block on the page was freed
  bool leaves = false;  // an answer: the schedule spends the gap after this use
};

class Timeline {
 public:
  static constexpr std::size_t kCapacity = std::size_t{1} << 18;
  static constexpr std::uint32_t kLongestMatch = 64;
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  // REQUIRES: capacity is a power of two, at least 64. 16 bytes each.
  explicit Timeline(std::size_t capacity = kCapacity);

  // Adds the newest use; `leaves` of the argument is not read. Returns the mark
  // of the use, which it has from the earlier position if it was the expected
  // one. One hash lookup; in step one comparison, otherwise at most
  // 68 * kLongestMatch comparisons of lasting pages' uses, and for a jump to a
  // full match 34 * kWholeMatch.
  bool Add(const PageUse& use);

  // Uses added so far, repetitions apart; the position of the next one. O(1).
  std::uint64_t now() const { return now_; }
  std::size_t capacity() const { return ring_.size(); }

  // Whether there is an earlier position that the future is expected to follow;
  // and whether the newest use was the expected one. O(1).
  bool HasFuture() const { return expected_ != kNever; }
  bool InStep() const { return HasFuture() && astray_ == 0; }

  // Distance between now and the followed position: the uses that are expected
  // before the first of them comes again. 0: no future. O(1).
  std::uint64_t Length() const { return HasFuture() ? now_ - expected_ : 0; }
  // The same once the cycle is stable, else 0: in step, and that for a whole
  // length or kStableRun uses, slips included. O(1).
  std::uint64_t StableLength() const;
  // How often the followed position became another one, slips apart. A
  // schedule that was made before the last jump holds no longer. O(1).
  std::uint64_t jumps() const { return jumps_; }

  // Position after the newest use that was the expected one, or that another
  // position was found for. It changes with each such use. O(1).
  std::uint64_t followed() const { return followed_; }

  // The use expected `ahead` uses from now; 0 is the next one. The future
  // repeats after Length() uses. REQUIRES: HasFuture(). O(1).
  PageUse Expected(std::uint64_t ahead) const;

  // Uses until the next expected use of the page; 0 is the next use. kNever:
  // none is expected, the page is freed before it, or there is no future.
  // O(1) amortised while in step; after a jump once at most as many steps as
  // the page has uses in the ring.
  std::uint64_t Distance(Address page);
  // Uses since the last use of the page; kNever: not remembered. O(1).
  std::uint64_t Age(Address page) const;

  // Whether it was freed last. O(1).
  bool IsDead(Address page) const {
    const auto it = index_.find(page);
    return it != index_.end() && LastFreed(it->second);
  }

  // Marks the Length() expected uses from Expected(0) on, in order. Uses that
  // are added in step take over the marks. REQUIRES: marks.size() == Length().
  // O(Length()).
  void Mark(std::span<const std::uint8_t> marks);
  // Removes all marks. O(capacity()).
  void ClearMarks();

 private:
  // Uses by which a slip may move the followed position.
  static constexpr std::uint64_t kSlip = 64;
  // Uses that may be left out in step, however well the past matches elsewhere:
  // tensors that share pages with others do not always begin in the same one.
  static constexpr std::uint64_t kClose = 3;
  static constexpr std::uint32_t kPatience = 8;
  // Uses that are compared where matches of kLongestMatch are equal.
  static constexpr std::uint32_t kWholeMatch = 4096;
  static constexpr std::uint32_t kCandidates = 32;
  static constexpr std::uint64_t kStableRun = 1024;
  // A page that had so many uses more than in its life before lasts.
  static constexpr std::uint32_t kLongLife = 4;
  static constexpr std::uint32_t kManyUses = 16;
  // Uses that are looked through for a page that is expected to be made.
  static constexpr std::uint64_t kBirths = 256;

  struct Entry {
    std::uint32_t page;      // index into pages_
    std::uint32_t previous;  // uses back to the page's previous one; 0: none
    std::uint32_t next;      // uses on to the page's next one; 0: none
    bool written;
    bool made;
    bool freed;
    bool leaves;
  };
  static_assert(sizeof(Entry) == 16);
  struct Page {
    Address address = 0;
    std::uint64_t newest = 0;       // position of its newest use
    std::uint64_t hint = 0;         // one of its positions, where Seek begins
    std::uint32_t births = 0;       // 2: or more
    std::uint32_t uses = 0;         // since it was made
    std::uint32_t uses_before = 0;  // in its life before
  };
  struct Match {
    std::uint64_t position = kNever;
    std::uint32_t length = 0;
  };

  Entry& At(std::uint64_t position) { return ring_[position & mask_]; }
  const Entry& At(std::uint64_t position) const {
    return ring_[position & mask_];
  }
  std::uint64_t Oldest() const {
    return now_ > ring_.size() ? now_ - ring_.size() : 0;
  }
  bool Same(std::uint64_t a, std::uint64_t b) const;
  bool IsNear(std::uint64_t position) const;
  bool IsClose(std::uint64_t position) const;
  bool LastFreed(std::uint32_t page) const {
    return At(pages_[page].newest).freed;
  }
  // Made more than once, and not used much longer than in the life before. If
  // nothing was as expected for a whole length, each use has to be compared:
  // another model may have the addresses now.
  bool IsPassing(std::uint32_t index) const {
    const Page& page = pages_[index];
    return page.births > 1 &&
           page.uses <= kLongLife * page.uses_before + kManyUses &&
           IsConfirmed();
  }
  bool IsConfirmed() const { return HasFuture() && now_ <= confirmed_until_; }
  // A use of a lasting page, neither made nor freed there: what the position
  // follows.
  bool IsPlainUse(std::uint64_t position) const {
    const Entry& entry = At(position);
    return !entry.freed && !entry.made && !IsPassing(entry.page);
  }
  // The first plain use from `position` on, or the last one up to it; kNever:
  // none.
  std::uint64_t UseFrom(std::uint64_t position) const;
  std::uint64_t UseUpTo(std::uint64_t position) const;
  // A page is made at `address`: the first dead page that is expected to be
  // made has the address from now on. The position at which it was expected;
  // kNever: none was.
  std::uint64_t Rename(Address address);
  // The page's previous position; kNever: none, or not remembered.
  std::uint64_t Previous(std::uint64_t position) const;
  // The page's first position at or after `from`; kNever: none.
  std::uint64_t Seek(Page& page, std::uint64_t from);

  bool AddPassing();
  bool AddChange(const PageUse& change);
  void Append(const PageUse& use);
  void Forget(std::uint64_t position);
  std::uint32_t PageOf(Address address);
  // Equal uses up to and including the two positions, `longest` at most.
  std::uint32_t MatchBack(std::uint64_t earlier, std::uint64_t later,
                          std::uint32_t longest) const;
  template <typename Visit>
  void ForCandidates(std::uint64_t position, Visit visit);
  std::uint64_t BestSlip(std::uint64_t position);
  Match BestMatch(std::uint64_t position);
  void Search(std::uint64_t position);
  void Follow(std::uint64_t earlier);

  std::vector<Entry> ring_;
  std::uint64_t mask_;
  std::uint64_t now_ = 0;
  std::uint64_t expected_ = kNever;  // the position followed next
  std::uint64_t birth_ = 0;          // births before it have come, or will not
  std::uint64_t run_ = 0;            // uses in step since the last jump
  // A length after the last use that was the expected one.
  std::uint64_t confirmed_until_ = 0;
  std::uint64_t followed_ = 0;
  std::uint32_t astray_ = 0;  // uses since the last one in step
  std::uint64_t jumps_ = 0;

  std::vector<Page> pages_;
  std::vector<std::uint32_t> free_pages_;
  std::unordered_map<Address, std::uint32_t> index_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_POLICY_TIMELINE_H_
