// SPDX-License-Identifier: Apache-2.0
// A process of its own: it forks with threads.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "accounting/scope_table.h"
#include "gtest/gtest.h"

namespace stratalloc {
namespace {

// Of a child that waits for a lock that nobody opens nothing else is left.
constexpr unsigned kSeconds = 60;

TEST(ScopeFork, AChildInternsWhateverThreadsOfItsParentDid) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&stop] {
      for (int i = 0; !stop.load(); ++i) {
        InternScope("parent " + std::to_string(i % 5000));
      }
    });
  }
  const ScopeId known = InternScope("known");
  for (int i = 0; i < 200; ++i) {
    const pid_t child = fork();
    ASSERT_NE(child, -1);
    if (child == 0) {
      alarm(kSeconds);
      const bool same = InternScope("known") == known &&
                        ScopeName(known) == "known" &&
                        ScopeName(InternScope("child")) == "child";
      _exit(same ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0) << "the child waits for ever, or reads another name";
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace stratalloc
