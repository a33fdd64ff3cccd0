// SPDX-License-Identifier: Apache-2.0
#include "tiering/gpu/checksum_host.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tiering/gpu/checksum_mix.h"

namespace stratalloc {
namespace {

std::vector<std::uint64_t> Words(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> words(count);
  for (std::uint64_t& word : words) word = random();
  return words;
}
std::uint64_t Sum(const std::vector<std::uint64_t>& words) {
  return ChecksumOnHost(words.data(), words.size() * 8);
}

TEST(ChecksumHost, IsTheSumOfItsTerms) {
  for (const std::size_t count : {0, 1, 2, 3, 4, 5, 7, 64, 1001}) {
    const auto words = Words(count, count);
    std::uint64_t expected = 0;
    for (std::size_t i = count; i-- > 0;) expected += ChecksumTerm(words[i], i);
    EXPECT_EQ(Sum(words), expected) << count;
  }
}

// Worked out apart from this code, so that kernel and twin cannot drift
// together.
TEST(ChecksumHost, KnownValue) {
  const std::vector<std::uint64_t> words{1, 2, 3, 0xffffffffffffffff};
  EXPECT_EQ(Sum(words), 17582626210659319791uLL);
}

TEST(ChecksumHost, AnyFlippedByteShows) {
  auto words = Words(512, 1);
  const std::uint64_t before = Sum(words);
  auto* const bytes = reinterpret_cast<unsigned char*>(words.data());
  for (std::size_t i = 0; i < words.size() * 8; ++i) {
    for (const unsigned char flip : {0x01, 0x80, 0xff}) {
      bytes[i] ^= flip;
      EXPECT_NE(Sum(words), before) << "byte " << i;
      bytes[i] ^= flip;
    }
  }
  EXPECT_EQ(Sum(words), before);
}

TEST(ChecksumHost, SwappedWordsShow) {
  auto words = Words(256, 2);
  const std::uint64_t before = Sum(words);
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    for (const std::size_t j : {i + 1, words.size() - 1 - i}) {
      if (words[i] == words[j]) continue;
      std::swap(words[i], words[j]);
      EXPECT_NE(Sum(words), before) << i << " and " << j;
      std::swap(words[i], words[j]);
    }
  }
}

// All-zero and constant memory, which real parameters have a lot of.
TEST(ChecksumHost, ConstantMemoryOfDifferentValuesDiffers) {
  const std::uint64_t zeros = Sum(std::vector<std::uint64_t>(4096, 0));
  const std::uint64_t ones = Sum(std::vector<std::uint64_t>(4096, 1));
  std::vector<std::uint64_t> shifted(4096, 0);
  shifted[4095] = 1;
  EXPECT_NE(zeros, ones);
  EXPECT_NE(zeros, Sum(shifted));
  EXPECT_NE(ones, Sum(shifted));
}

}  // namespace
}  // namespace stratalloc
