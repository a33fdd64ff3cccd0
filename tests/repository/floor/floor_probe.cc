// SPDX-License-Identifier: Apache-2.0

// Library of a test: refers to each function of the floor, and calls it.

#include <dlfcn.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#define PROBE extern "C" __attribute__((visibility("default")))

PROBE int64_t probe_size(const char* path) {
  struct stat found {};
  return stat(path, &found) == 0 ? found.st_size : -1;
}

PROBE int64_t probe_size_of_file(int file) {
  struct stat found {};
  return fstat(file, &found) == 0 ? found.st_size : -1;
}

// 1: the time was over; 0: the other thread notified.
PROBE int probe_wait(int milliseconds, bool notify) {
  std::mutex mutex;
  std::condition_variable changed;
  bool ready = false;
  std::thread other([&] {
    const std::lock_guard lock(mutex);
    ready = notify;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  const bool in_time = changed.wait_for(
      lock, std::chrono::milliseconds(milliseconds), [&] { return ready; });
  lock.unlock();
  other.join();
  return in_time ? 0 : 1;
}

PROBE int probe_wait_without_limit() {
  std::mutex mutex;
  std::condition_variable changed;
  bool ready = false;
  std::thread other([&] {
    const std::lock_guard lock(mutex);
    ready = true;
    changed.notify_all();
  });
  {
    std::unique_lock lock(mutex);
    while (!ready) {
      changed.wait(lock);
    }
  }
  other.join();
  return 1;
}

PROBE int probe_text(int number) {
  std::ostringstream out;
  out << "number " << number;
  return static_cast<int>(out.str().size());
}

// The size of the text that was taken; -1 if some of it is left.
PROBE int probe_taken_text(int number) {
  std::ostringstream out;
  out << "number " << number;
  // By its address: a call could be inlined.
  std::string (std::stringbuf::*volatile take)()&& = &std::stringbuf::str;
  const std::string taken = (std::move(*out.rdbuf()).*take)();
  return out.str().empty() ? static_cast<int>(taken.size()) : -1;
}

PROBE int probe_number(const char* text) {
  std::stringstream both;
  both << text << ' ' << text;
  std::istringstream in;
  in.str(both.str());
  int first = 0;
  int second = 0;
  in >> first >> second;
  return first + second;
}

PROBE int probe_exception(int copies) {
  std::exception_ptr held;
  try {
    throw std::bad_array_new_length();
  } catch (...) {
    held = std::current_exception();
  }
  const std::vector<std::exception_ptr> held_often(static_cast<size_t>(copies),
                                                   held);
  try {
    std::rethrow_exception(held_often.back());
  } catch (const std::bad_array_new_length&) {
    return 1;
  }
}

PROBE int probe_bad_length(int64_t length) {
  try {
    const std::unique_ptr<int[]> made(new int[static_cast<size_t>(length)]);
    return made != nullptr ? 0 : -1;
  } catch (const std::bad_array_new_length&) {
    return 1;
  }
}

PROBE int probe_shared(int copies) {
  const auto first = std::make_shared<int>(1);
  std::shared_ptr<int> second;
  for (int i = 0; i < copies; ++i) {
    second = first;
  }
  return static_cast<int>(first.use_count());
}

PROBE int probe_symbol(const char* name) {
  void* const self = dlopen(nullptr, RTLD_NOW);
  return self != nullptr && dlsym(self, name) != nullptr ? 1 : 0;
}

PROBE int probe_name() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof(name));
  pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
  return pthread_rwlock_rdlock(&lock) + pthread_rwlock_unlock(&lock) == 0 &&
                 std::strlen(name) > 0
             ? 1
             : 0;
}

PROBE double probe_log(double value) { return std::log(value); }
