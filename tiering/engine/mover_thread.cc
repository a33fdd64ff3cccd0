// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/mover_thread.h"

#include <pthread.h>

#include <chrono>
#include <utility>

namespace stratalloc {
namespace {

// Between two looks while there is work, and how many looks in vain end that.
constexpr std::chrono::microseconds kBetweenLooks{30};
constexpr int kLooksInVain = 100;

}  // namespace

MoverThread::MoverThread(std::function<void()> relieve,
                         std::function<bool()> step)
    : relieve_(std::move(relieve)),
      step_(std::move(step)),
      thread_([this] { Run(); }) {}

MoverThread::~MoverThread() { Stop(); }

void MoverThread::Stop() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  Rouse();
  thread_.join();
}

void MoverThread::AskRelief() {
  relief_.store(true);
  Wake();
}

void MoverThread::Rouse() {
  asked_.fetch_add(1);
  asked_.notify_one();
}

void MoverThread::Relieve() {
  if (relief_.exchange(false)) relieve_();
}

void MoverThread::Run() {
  // For top -H and debuggers; the simulated device keeps the time of threads
  // of this name apart from the program's.
  (void)pthread_setname_np(pthread_self(), "stratalloc-tier");
  int in_vain = 0;
  while (!stop_.load()) {
    // Read before looking: a wish made after the look changes it, and the
    // wait below returns at once.
    const std::uint32_t seen = asked_.load();
    if (in_vain >= kLooksInVain) sleeps_.store(true);
    Relieve();
    in_vain = step_() ? 0 : in_vain + 1;
    if (!sleeps_.load()) {
      std::this_thread::sleep_for(kBetweenLooks * (1 + in_vain / 10));
    } else if (in_vain > 0 && !relief_.load() && !stop_.load()) {
      asked_.wait(seen);
      sleeps_.store(false);
      in_vain = 0;
    } else {
      sleeps_.store(false);
    }
  }
}

}  // namespace stratalloc
