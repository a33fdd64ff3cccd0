// SPDX-License-Identifier: Apache-2.0
// What stands in the way of an eviction may be that there is no memory: a write
// and a read ask nobody for any.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "tiering/io/codec_data_test.h"
#include "tiering/io/disk_tier.h"

extern "C" void* __libc_malloc(std::size_t bytes);
extern "C" void* __libc_calloc(std::size_t count, std::size_t bytes);
extern "C" void* __libc_realloc(void* old, std::size_t bytes);
extern "C" void* __libc_memalign(std::size_t alignment, std::size_t bytes);

namespace {
thread_local int asked = 0;
}

extern "C" void* malloc(std::size_t bytes) {
  ++asked;
  return __libc_malloc(bytes);
}
extern "C" void* calloc(std::size_t count, std::size_t bytes) {
  ++asked;
  return __libc_calloc(count, bytes);
}
extern "C" void* realloc(void* old, std::size_t bytes) {
  ++asked;
  return __libc_realloc(old, bytes);
}
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  ++asked;
  return __libc_memalign(alignment, bytes);
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

}  // namespace
}  // namespace stratalloc
