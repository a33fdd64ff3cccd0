// SPDX-License-Identifier: Apache-2.0
// Fixture of the disk tier's tests: a folder, staging buffers, planned faults
// and the lines of the log.
#ifndef STRATALLOC_TIERING_IO_DISK_TIER_FIXTURE_TEST_H_
#define STRATALLOC_TIERING_IO_DISK_TIER_FIXTURE_TEST_H_

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/check.h"
#include "tiering/io/disk_faults_test.h"
#include "tiering/io/disk_tier.h"

namespace stratalloc {

inline constexpr Bytes kSmall = 2 * kMiB;
inline constexpr Bytes kLarge = 32 * kMiB;

// What the product has logged in the case that runs.
inline std::vector<std::string> log_lines;
inline int LinesWith(const std::string& text) {
  int count = 0;
  for (const std::string& line : log_lines) {
    count += line.find(text) != std::string::npos;
  }
  return count;
}

// Page-aligned memory, as staging buffers and host copies are.
class Pages {
 public:
  explicit Pages(Bytes bytes)
      : bytes_(bytes),
        data_(static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  void Fill(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (Bytes at = 0; at < bytes_; at += 8) {
      const std::uint64_t word = random();
      std::memcpy(data_ + at, &word, 8);
    }
  }
  char* data() const { return data_; }
  Bytes bytes() const { return bytes_; }

 private:
  const Bytes bytes_;
  char* const data_;
};

using Without = DiskTier::Options::Without;

class DiskTierTest : public testing::Test {
 protected:
  DiskTierTest() : staging_{Pages(kLarge), Pages(kLarge)} {
    log_lines.clear();
    SetLogSink([](int, const char* text) { log_lines.push_back(text); });
    directory_ = testing::TempDir() + "disk" + std::to_string(getpid());
    std::filesystem::create_directory(directory_);
  }
  ~DiskTierTest() override {
    SetLogSink(nullptr);
    std::filesystem::remove_all(directory_);
  }
  DiskTier::Options Budget(Bytes budget, Without without = {}) {
    DiskTier::Options options;
    options.directory = directory_;
    options.budget = budget;
    options.max_chunk_bytes = kLarge;
    options.staging[0] = staging_[0].data();
    options.staging[1] = staging_[1].data();
    options.without = without;
    options.wrap_io = faults_.Wrap();
    return options;
  }
  std::unique_ptr<DiskTier> Open(Bytes budget, Without without = {}) {
    auto tier = DiskTier::Open(Budget(budget, without));
    EXPECT_TRUE(tier) << tier.error().message;
    return tier ? std::move(*tier) : nullptr;
  }

  std::string directory_;
  Pages staging_[2];
  DiskFaults faults_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_IO_DISK_TIER_FIXTURE_TEST_H_
