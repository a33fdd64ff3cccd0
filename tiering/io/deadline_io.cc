// SPDX-License-Identifier: Apache-2.0
#include "tiering/io/deadline_io.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace stratalloc {
namespace {

// Of one wait: a longer one would overflow the clock.
constexpr std::chrono::hours kLongest{1};

}  // namespace

DeadlineIo::DeadlineIo(std::unique_ptr<BlockIo> moves,
                       std::chrono::nanoseconds most)
    : moves_(std::move(moves)), most_(most), thread_([this] { Run(); }) {}

DeadlineIo::~DeadlineIo() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(mutex_);
    while (what_ == Asked::kFinish) ended_.Wait(mutex_);
    what_ = Asked::kStop;
    asked_.NotifyAll();
  }
  thread_.join();
}

void DeadlineIo::Start(IoRequest* request) {
  MutexLock lock(mutex_);
  request->next = nullptr;
  *last_ = request;
  last_ = &request->next;
}

void DeadlineIo::Flush() {
  MutexLock lock(mutex_);
  if (what_ == Asked::kNothing) what_ = Asked::kFlush;
  asked_.NotifyAll();
}

int DeadlineIo::Finish() {
  const auto began = std::chrono::steady_clock::now();
  MutexLock lock(mutex_);
  what_ = Asked::kFinish;
  asked_.NotifyAll();
  while (what_ == Asked::kFinish) {
    // By subtraction: the most may be for ever.
    const auto left = most_ - (std::chrono::steady_clock::now() - began);
    if (left.count() <= 0) {
      stuck_.store(true, std::memory_order_release);
      return ETIMEDOUT;
    }
    ended_.WaitFor(mutex_, std::min<std::chrono::nanoseconds>(left, kLongest));
  }
  return error_;
}

void DeadlineIo::Run() {
  (void)pthread_setname_np(pthread_self(), "stratalloc-disk");
  MutexLock lock(mutex_);
  while (true) {
    while (what_ == Asked::kNothing) asked_.Wait(mutex_);
    if (what_ == Asked::kStop) return;
    const bool finish = what_ == Asked::kFinish;
    // A Finish that comes meanwhile is served in the next round.
    if (!finish) what_ = Asked::kNothing;
    IoRequest* next = std::exchange(first_, nullptr);
    last_ = &first_;
    mutex_.Unlock();
    while (next != nullptr) moves_->Start(std::exchange(next, next->next));
    moves_->Flush();
    const int error = finish ? moves_->Finish() : 0;
    mutex_.Lock();
    if (!finish) continue;
    error_ = error;
    what_ = Asked::kNothing;
    stuck_.store(false, std::memory_order_release);
    ended_.NotifyAll();
  }
}

void DeadlineIo::AbandonAfterFork() {
  moves_->AbandonAfterFork();
  // The thread stayed in the parent.
  thread_.detach();
}

}  // namespace stratalloc
