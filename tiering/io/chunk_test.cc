// SPDX-License-Identifier: Apache-2.0
#include "tiering/io/chunk.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

namespace stratalloc {
namespace {

ChunkHeader Example() {
  ChunkHeader header{};
  header.identity = 42;
  header.generation = 3;
  header.bytes = 2 * kMiB;
  header.stored = kMiB;
  header.codec = 2;
  header.width = 4;
  header.checksum = 0x23456789abcdef01;
  header.payload_checksum = 0x123456789abcdef0;
  return header;
}

class ChunkTest : public testing::Test {
 protected:
  ChunkTest() { WriteHeader(block_.data(), Example()); }
  std::array<char, kIoBlock> block_;
};

TEST_F(ChunkTest, AcceptsWhatWasWritten) {
  EXPECT_EQ(CompareHeader(block_.data(), Example()), "");
}

TEST_F(ChunkTest, NamesEachDifference) {
  ChunkHeader other = Example();
  other.identity = 43;
  EXPECT_EQ(CompareHeader(block_.data(), other),
            "it holds identity 42 instead of 43");
  other = Example();
  other.generation = 4;
  EXPECT_EQ(CompareHeader(block_.data(), other),
            "it holds generation 3 instead of 4");
  other = Example();
  other.bytes = kMiB;
  EXPECT_EQ(CompareHeader(block_.data(), other),
            "it holds a length of 2097152 instead of 1048576");
  other = Example();
  other.stored = 4096;
  EXPECT_EQ(CompareHeader(block_.data(), other),
            "it is stored in 1048576 instead of 4096");
  other = Example();
  other.codec = 1;
  EXPECT_EQ(CompareHeader(block_.data(), other), "its codec is 2 instead of 1");
  other = Example();
  other.width = 8;
  EXPECT_EQ(CompareHeader(block_.data(), other),
            "its elements have a width of 4 instead of 8");
  other = Example();
  other.checksum = 1;
  EXPECT_NE(CompareHeader(block_.data(), other).find("has checksum"),
            std::string::npos);
  other = Example();
  other.payload_checksum = 1;
  EXPECT_NE(CompareHeader(block_.data(), other).find("payload of checksum"),
            std::string::npos);
}

TEST_F(ChunkTest, NoFlippedBitOfTheHeaderPasses) {
  for (std::size_t bit = 0; bit < sizeof(ChunkHeader) * 8; ++bit) {
    block_[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    EXPECT_NE(CompareHeader(block_.data(), Example()), "") << "bit " << bit;
    block_[bit / 8] ^= static_cast<char>(1 << (bit % 8));
  }
  EXPECT_EQ(CompareHeader(block_.data(), Example()), "");
}

TEST_F(ChunkTest, AnEmptyBlockIsNoChunk) {
  block_.fill(0);
  EXPECT_EQ(CompareHeader(block_.data(), Example()),
            "there is no chunk header");
}

TEST(PayloadChecksum, SeesEveryByte) {
  std::vector<char> data(3 * kIoBlock, 7);
  const std::uint64_t before = PayloadChecksum(data.data(), data.size());
  for (std::size_t i = 0; i < data.size(); i += 97) {
    data[i] ^= 1;
    EXPECT_NE(PayloadChecksum(data.data(), data.size()), before) << i;
    data[i] ^= 1;
  }
  EXPECT_EQ(PayloadChecksum(data.data(), data.size()), before);
}

}  // namespace
}  // namespace stratalloc
