// SPDX-License-Identifier: Apache-2.0
// A disk that fails when it is told to: wraps what moves the disk tier's bytes
// (DiskTier::Options::wrap_io). All transfers are made; of some the tier hears
// something else, as of a disk that is full or that has rotten; or it waits, as
// for a disk that does not answer.
//
// Thread-safety: every method from any thread, but Wrap and
// WaitBeforeLateAnswers: before there are transfers.
// Lifetime: longer than the tiers that it was given to.
#ifndef STRATALLOC_TIERING_IO_DISK_FAULTS_TEST_H_
#define STRATALLOC_TIERING_IO_DISK_FAULTS_TEST_H_

#include <atomic>
#include <cerrno>
#include <functional>
#include <memory>
#include <utility>

#include "tiering/io/block_io.h"

namespace stratalloc {

class DiskFaults {
 public:
  // The next `count` chunks that are written meet ENOSPC.
  void FailWrites(int count) { failing_writes_.store(count); }
  // Of the next `count` chunks that are read one bit has changed.
  void FlipReads(int count) { flipped_reads_.store(count); }

  // The next `count` chunks stand still until `wait` returns, which this calls
  // on the disk's thread.
  void AnswerLate(int count) { late_answers_.store(count); }
  void WaitBeforeLateAnswers(std::function<void()> wait) {
    wait_ = std::move(wait);
  }

  // No transfer ends until it is let. The last call counts.
  void Hold(bool hold) {
    held_.store(hold);
    held_.notify_all();
  }
  // Transfers that wait for that.
  int waiting() const { return waiting_.load(); }

  WrapIo Wrap() {
    return [this](std::unique_ptr<BlockIo> io) {
      return std::make_unique<Io>(*this, std::move(io));
    };
  }

 private:
  class Io final : public BlockIo {
   public:
    Io(DiskFaults& faults, std::unique_ptr<BlockIo> io)
        : faults_(faults), io_(std::move(io)) {}
    void Start(IoRequest* request) override {
      // The header is smaller than what it is of, or as large and comes after.
      if (payload_ == nullptr || request->bytes > payload_->bytes) {
        payload_ = request;
      }
      io_->Start(request);
    }
    void Flush() override { io_->Flush(); }
    int Finish() override {
      if (faults_.wait_ && Takes(faults_.late_answers_)) faults_.wait_();
      const int error = io_->Finish();
      faults_.waiting_.fetch_add(1);
      faults_.held_.wait(true);
      faults_.waiting_.fetch_sub(1);
      const IoRequest* const moved = std::exchange(payload_, nullptr);
      if (error != 0 || moved == nullptr) return error;
      if (moved->write) return Takes(faults_.failing_writes_) ? ENOSPC : 0;
      if (Takes(faults_.flipped_reads_)) moved->data[moved->bytes / 2] ^= 0x10;
      return 0;
    }
    bool broken() const override { return io_->broken(); }
    void AbandonAfterFork() override { io_->AbandonAfterFork(); }

   private:
    static bool Takes(std::atomic<int>& count) {
      int left = count.load();
      while (left > 0 && !count.compare_exchange_weak(left, left - 1)) {
      }
      return left > 0;
    }

    DiskFaults& faults_;
    const std::unique_ptr<BlockIo> io_;
    const IoRequest* payload_ = nullptr;
  };

  std::atomic<int> failing_writes_{0}, flipped_reads_{0}, late_answers_{0};
  std::atomic<int> waiting_{0};
  std::atomic<bool> held_{false};
  std::function<void()> wait_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_IO_DISK_FAULTS_TEST_H_
