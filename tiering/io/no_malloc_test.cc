// SPDX-License-Identifier: Apache-2.0
// What stands in the way of an eviction may be that there is no memory: a write
// and a read ask nobody for any.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <utility>
#include <vector>

#include "tiering/io/codec_data_test.h"
#include "tiering/io/disk_tier.h"
#include "tiering/io/host_spill.h"

extern "C" void* __libc_malloc(std::size_t bytes);
extern "C" void* __libc_calloc(std::size_t count, std::size_t bytes);
extern "C" void* __libc_realloc(void* old, std::size_t bytes);
extern "C" void* __libc_memalign(std::size_t alignment, std::size_t bytes);

namespace {
thread_local int asked = 0;
thread_local int refused = 0;  // the next but so many - 1 is; 0: none

bool Refuses() {
  ++asked;
  return refused > 0 && --refused == 0;
}
}  // namespace

extern "C" void* malloc(std::size_t bytes) {
  return Refuses() ? nullptr : __libc_malloc(bytes);
}
extern "C" void* calloc(std::size_t count, std::size_t bytes) {
  return Refuses() ? nullptr : __libc_calloc(count, bytes);
}
extern "C" void* realloc(void* old, std::size_t bytes) {
  return Refuses() ? nullptr : __libc_realloc(old, bytes);
}
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return Refuses() ? nullptr : __libc_memalign(alignment, bytes);
}

namespace stratalloc {
namespace {

TEST(NoMalloc, OfAWriteAndARead) {
  constexpr Bytes kBytes = 4 * kMiB;
  constexpr std::align_val_t kPages{4096};
  void* const data = operator new(kBytes, kPages);
  void* const back = operator new(kBytes, kPages);
  for (const DiskCodec codec :
       {DiskCodec::kOff, DiskCodec::kLz4, DiskCodec::kZstd}) {
    DiskTier::Options options;
    options.directory = testing::TempDir();
    options.budget = 64 * kMiB;
    options.max_chunk_bytes = kBytes;
    options.codec = codec;
    const auto tier = DiskTier::Open(options);
    ASSERT_TRUE(tier) << tier.error().message;
    for (const char* const kind : kDataKinds) {
      FillKind(kind, data, kBytes);
      const int before = asked;
      const auto chunk = (*tier)->Write(data, kBytes, 1, 1);
      const bool read = chunk && (*tier)->Read(*chunk, back);
      if (chunk) (*tier)->Free(*chunk);
      EXPECT_EQ(asked, before) << kind << " " << DiskCodecName(codec);
      ASSERT_TRUE(read) << kind;
      EXPECT_EQ(std::memcmp(data, back, kBytes), 0);
    }
  }
  // It is this process's malloc that was counted.
  const int before = asked;
  std::free(std::malloc(1));
  operator delete(operator new(1));
  operator delete(operator new(1, kPages), kPages);
  EXPECT_EQ(asked, before + 3);
  operator delete(data, kPages);
  operator delete(back, kPages);
}

// More chunks than the list of free extents was made for, with a hole beside
// each.
TEST(NoMalloc, OfAFreeAmongManyHoles) {
  constexpr Bytes kBytes = 4096;
  constexpr std::align_val_t kPages{4096};
  void* const data = operator new(kBytes, kPages);
  std::memset(data, 1, kBytes);
  DiskTier::Options options;
  options.directory = testing::TempDir();
  options.budget = 16 * kMiB;
  options.max_chunk_bytes = kBytes;
  const auto tier = DiskTier::Open(options);
  ASSERT_TRUE(tier) << tier.error().message;
  std::vector<DiskChunk> chunks;
  for (std::uint64_t i = 0; i < 600; ++i) {
    const auto chunk = (*tier)->Write(data, kBytes, i, 1);
    ASSERT_TRUE(chunk) << chunk.error().message;
    chunks.push_back(*chunk);
  }
  const int before = asked;
  for (std::size_t i = 0; i < chunks.size(); i += 2) (*tier)->Free(chunks[i]);
  for (std::size_t i = 1; i < chunks.size(); i += 2) (*tier)->Free(chunks[i]);
  EXPECT_EQ(asked, before);
  EXPECT_EQ((*tier)->used(), 0u);
  operator delete(data, kPages);
}

int OpenFiles() {
  int count = 0;
  for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    count += !one.path().empty();
  }
  return count;
}

// Each that is asked for in turn is not there: that is told, by no exception.
TEST(NoMalloc, IsToldOf) {
  HostSpill::Options options;
  options.directory = testing::TempDir();
  options.quota = 64 * kMiB;
  const std::vector<char> data(20 * kMiB, 7);
  const int files = OpenFiles();
  int told = 0;
  for (int nth = 1; nth < 1000; ++nth) {
    refused = nth;
    const auto spill = HostSpill::Open(options);
    const bool met = std::exchange(refused, 0) == 0;
    if (!spill) {
      ASSERT_TRUE(met);
      EXPECT_EQ(spill.error().code, ErrorCode::kHostOutOfMemory)
          << spill.error().message;
      ++told;
    }
    if (!met) break;
  }
  EXPECT_GT(told, 5);
  EXPECT_EQ(OpenFiles(), files);
  const auto spill = HostSpill::Open(options);
  ASSERT_TRUE(spill);
  for (int nth = 1; nth < 1000; ++nth) {
    refused = nth;
    const auto ticket = (*spill)->Write(data.data(), data.size());
    const bool met = std::exchange(refused, 0) == 0;
    if (ticket) {
      EXPECT_TRUE((*spill)->Free(*ticket));
    } else {
      EXPECT_EQ(ticket.error().code, ErrorCode::kHostOutOfMemory);
    }
    EXPECT_EQ((*spill)->Count().stored, 0u) << nth;
    EXPECT_EQ((*spill)->Count().used, 0u) << nth;
    if (!met) break;
    EXPECT_FALSE(ticket) << nth;
  }
}

}  // namespace
}  // namespace stratalloc
