// SPDX-License-Identifier: Apache-2.0
// What tests of the ladder share: a device without memory. It writes down what
// it is asked, in the order of the questions, and answers as the test said.
// Plain values of one thread.
#ifndef STRATALLOC_ALLOCATOR_LADDER_LADDER_FIXTURE_TEST_H_
#define STRATALLOC_ALLOCATOR_LADDER_LADDER_FIXTURE_TEST_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "allocator/blocks/operator_thread.h"
#include "allocator/ladder/ladder.h"
#include "allocator/ladder/ladder_device.h"
#include "allocator/ladder/malloc_attempt.h"

namespace stratalloc {

inline constexpr Bytes kAsked = 4 * kMiB;
inline constexpr PoolId kOwnPool{0, 3};
inline constexpr Address kServedAt = 0x1000;

class FakeLadderDevice final : public LadderDevice {
 public:
  std::vector<std::string> asked;  // "... (inside)": a malloc would be nested

  // What is asked so serves the request; or finds the driver failing.
  std::string serves, fails;
  Bytes lacks = 6 * kMiB;  // every search
  bool captures = false;   // so the first search says
  bool crowded = false, pressure = false;
  bool could_hold = true, cannot_fit = false;
  bool frees = false, unmanaged = false, threshold = false, may_move = false;
  bool restores = false;
  Address away = 0;
  Bytes too_much = 0;
  std::vector<Bytes> released;  // by the next releases of cached memory
  int ending = 0;               // releases that end while one waits
  std::function<bool(MemoryRequest&)> reclaim = [](MemoryRequest& request) {
    return request.Take();
  };

  bool Search(MallocAttempt& attempt, Reach reach) override {
    return Try(attempt, "search " + Text(reach));
  }
  bool SearchFirst(MallocAttempt& attempt) override {
    if (captures) attempt.may_reclaim = false;
    return Try(attempt, "search first");
  }
  bool Grow(MallocAttempt& attempt) override {
    return Try(attempt, "grow to " + Text(attempt.reach()));
  }
  bool SearchReleased(MallocAttempt& attempt, bool collected) override {
    return Try(attempt, "search released to " + Text(attempt.reach()) +
                            (collected ? ", collected" : ""));
  }
  bool SearchBeyondEmergency(MallocAttempt& attempt) override {
    return Try(attempt, "search beyond emergency");
  }
  bool SearchAgain(MallocAttempt& attempt, bool is_retry) override {
    return Try(attempt, is_retry ? "search again, a retry" : "search again");
  }
  std::uint64_t Releases() override {
    Note("releases");
    return releases_;
  }
  bool SearchAfterReleases(MallocAttempt& attempt, std::uint64_t seen,
                           bool* came_free) override {
    if (ending > 0) {
      --ending;
      ++releases_;
    }
    *came_free = releases_ != seen;
    return Try(attempt, "search after releases");
  }

  bool FetchUnmanaged(MallocAttempt& attempt) override {
    Note("fetch unmanaged");
    if (serves == "fetch unmanaged") return Serve(attempt);
    if (fails != "fetch unmanaged") return false;
    attempt.failed = {ErrorCode::kDevice, "it failed"};
    return attempt.EndFailed();
  }
  bool IsUnmanaged(const PoolKey&) override {
    return Note("is unmanaged", unmanaged);
  }
  bool Borrow(MallocAttempt& attempt) override {
    return Note("borrow", serves == "borrow") && Serve(attempt);
  }
  void CollectOld() override { Note("collect old"); }
  Bytes AboveCollectionThreshold(Bytes size) override {
    Note("above threshold");
    EXPECT_EQ(size, kAsked);
    return too_much;
  }
  bool HasCollectionThreshold() override {
    return Note("has threshold", threshold);
  }
  Bytes ReleaseCached(Bytes wanted, PoolId only) override {
    Note("release " +
         (wanted == ~Bytes{0} ? std::string("all") : FormatBytes(wanted)) +
         (only.is_private() ? " of the pool" : ""));
    if (released.empty()) return 0;
    const Bytes bytes = released.front();
    released.erase(released.begin());
    return bytes;
  }
  bool MayMove(PoolId owner) override {
    EXPECT_EQ(owner, kOwnPool);
    return Note("may move", may_move);
  }
  void SynchronizePendingFrees() override { Note("wait for frees"); }
  bool FreeMemory() override { return Note("free memory", frees); }
  bool CouldHold(Bytes size) override {
    EXPECT_EQ(size, kAsked);
    return Note("could hold", could_hold);
  }
  bool CannotFit(Bytes size) override {
    EXPECT_EQ(size, kAsked);
    return Note("cannot fit", cannot_fit);
  }
  Address FindAwaySpace(const MallocAttempt&) override {
    Note("find away");
    return away;
  }
  Error Refuse(MallocAttempt&, bool fits_nowhere) override {
    Note(fits_nowhere ? "refuse, fits nowhere" : "refuse");
    return {ErrorCode::kOutOfMemory, "no memory"};
  }

  bool IsCrowded() override { return Note("is crowded", crowded); }
  bool UnderPressure() override { return Note("under pressure", pressure); }
  bool RestoreSpace(Address address) override {
    EXPECT_EQ(address, away);
    return Note("restore", restores);
  }
  void ReclaimCold(Bytes bytes) override {
    Note("reclaim cold " + FormatBytes(bytes));
  }
  bool Reclaim(MemoryRequest& request) override {
    Note("reclaim");
    return reclaim(request);
  }

 private:
  static std::string Text(Reach reach) {
    return reach == Reach::kCached      ? "cached"
           : reach == Reach::kEmergency ? "emergency"
                                        : "limit";
  }
  bool Note(const std::string& what, bool answer = true) {
    asked.push_back(
        what + (OperatorThread::ThisThread().in_ladder ? " (inside)" : ""));
    return answer;
  }
  static bool Serve(MallocAttempt& attempt) {
    attempt.answer = AllocatedBlock{kServedAt, attempt.size, 0, 0, {}};
    return true;
  }
  bool Try(MallocAttempt& attempt, const std::string& what) {
    Note(what);
    if (what == serves) return Serve(attempt);
    attempt.lacking = lacks;
    attempt.failed.reset();
    if (what == fails) attempt.failed = {ErrorCode::kDevice, "it failed"};
    return false;
  }

  std::uint64_t releases_ = 7;
};

class LadderTest : public testing::Test {
 protected:
  LadderTest() {
    attempt_.size = attempt_.requested = attempt_.lacking = kAsked;
    attempt_.may_reclaim = true;
  }
  void TearDown() override {
    EXPECT_FALSE(OperatorThread::ThisThread().in_ladder);
  }
  // A malloc made inside the ladder.
  void Nest() {
    attempt_.nested = true;
    attempt_.may_reclaim = false;
  }
  bool Served() const {
    return attempt_.answer && *attempt_.answer &&
           (*attempt_.answer)->address == kServedAt;
  }
  std::string Message() const {
    return attempt_.answer && !*attempt_.answer
               ? attempt_.answer->error().message
               : "";
  }

  FakeLadderDevice device_;
  MallocAttempt attempt_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_LADDER_LADDER_FIXTURE_TEST_H_
