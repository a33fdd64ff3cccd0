// SPDX-License-Identifier: Apache-2.0
// Compressed chunks of the disk tier: every codec, flipped bits, holes.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "tiering/io/codec_data_test.h"
#include "tiering/io/disk_tier_fixture_test.h"

namespace stratalloc {
namespace {

// What lies in the file at `offset` changes, as on a disk that rots.
void FlipBit(const std::string& directory, std::uint64_t offset) {
  DIR* const all = opendir("/proc/self/fd");
  int flipped = 0;
  while (const dirent* entry = readdir(all)) {
    char target[PATH_MAX] = {};
    const std::string link = std::string("/proc/self/fd/") + entry->d_name;
    if (readlink(link.c_str(), target, sizeof(target) - 1) <= 0) continue;
    if (std::string(target).find(directory) != 0) continue;
    const int fd = open(link.c_str(), O_RDWR | O_CLOEXEC);
    char byte = 0;
    const auto at = static_cast<off_t>(offset);
    flipped += pread(fd, &byte, 1, at) == 1;
    byte ^= 0x10;
    flipped += pwrite(fd, &byte, 1, at) == 1;
    close(fd);
  }
  closedir(all);
  ASSERT_EQ(flipped, 2);
}

constexpr DiskCodec kCodecs[] = {DiskCodec::kLz4, DiskCodec::kZstd};

TEST_F(DiskTierTest, CompressedChunksComeBackInEveryMode) {
  for (const Without without : {Without{}, Without{.io_uring = true},
                                Without{true, true, true, true}}) {
    for (const DiskCodec codec : kCodecs) {
      DiskTier::Options options = Budget(64 * kMiB, without);
      options.codec = codec;
      auto opened = DiskTier::Open(options);
      ASSERT_TRUE(opened) << opened.error().message;
      DiskTier& tier = **opened;
      Bytes written = 0, stored = 0;
      for (const char* const kind : kDataKinds) {
        for (const Bytes bytes : {Bytes{4096}, 5 * kMiB + 4096}) {
          SCOPED_TRACE(std::string(kind) + " " + std::to_string(bytes));
          Pages data(bytes), back(bytes);
          FillKind(kind, data.data(), bytes);
          const auto chunk = tier.Write(data.data(), bytes, 7, 1);
          ASSERT_TRUE(chunk) << chunk.error().message;
          EXPECT_EQ(tier.used(), 4096 + chunk->stored.bytes);
          EXPECT_EQ(DiskTier::FileBytes(*chunk), tier.used());
          ASSERT_TRUE(tier.Read(*chunk, back.data()));
          EXPECT_EQ(std::memcmp(data.data(), back.data(), bytes), 0);
          tier.Free(*chunk);
          EXPECT_EQ(tier.used(), 0u);
          written += bytes;
          stored += chunk->stored.bytes;
        }
      }
      EXPECT_EQ(tier.written(), written);
      EXPECT_EQ(tier.written_stored(), stored);
      EXPECT_LT(stored, written / 4 * 3);
    }
  }
}

TEST_F(DiskTierTest, AChunkMayHaveACodecOfItsOwn) {
  DiskTier::Options options = Budget(64 * kMiB);
  options.codec = DiskCodec::kLz4;
  auto opened = DiskTier::Open(options);
  ASSERT_TRUE(opened);
  Pages data(kSmall), back(kSmall);
  FillKind("sparse", data.data(), kSmall);
  std::vector<DiskChunk> chunks;
  const auto write = [&](std::optional<DiskCodec> codec) {
    chunks.push_back(
        (*opened)->Write(data.data(), kSmall, 1, 1, codec).value());
    return chunks.back().stored.codec;
  };
  EXPECT_EQ(write(std::nullopt), DiskCodec::kLz4);
  EXPECT_EQ(write(DiskCodec::kOff), DiskCodec::kOff);
  EXPECT_EQ(write(DiskCodec::kZstd), DiskCodec::kZstd);
  for (const DiskChunk& chunk : chunks) {
    std::memset(back.data(), 0, kSmall);
    ASSERT_TRUE((*opened)->Read(chunk, back.data()));
    EXPECT_EQ(std::memcmp(data.data(), back.data(), kSmall), 0);
  }
}

TEST_F(DiskTierTest, AFlippedBitOfACompressedChunkIsCorruptWhereverItIs) {
  for (const DiskCodec codec : kCodecs) {
    const auto tier = Open(64 * kMiB);
    ASSERT_TRUE(tier);
    Pages data(kSmall), back(kSmall);
    FillKind("sparse", data.data(), kSmall);
    const auto chunk = tier->Write(data.data(), kSmall, 4711, 5, codec);
    ASSERT_TRUE(chunk);
    ASSERT_EQ(chunk->stored.codec, codec);
    const std::uint64_t payload = chunk->place.offset() + 4096;
    std::vector<std::uint64_t> offsets;
    for (std::uint64_t i = 0; i < 72; ++i) {  // all of the header
      offsets.push_back(chunk->place.offset() + i);
    }
    for (std::uint64_t i = 0; i < chunk->stored.bytes; i += 9973) {
      offsets.push_back(payload + i);
    }
    // Of the zeros at the end, too.
    offsets.push_back(payload + chunk->stored.bytes - 1);
    for (const std::uint64_t offset : offsets) {
      FlipBit(directory_, offset);
      const Status status = tier->Read(*chunk, back.data());
      ASSERT_FALSE(status) << offset;
      ASSERT_EQ(status.error().code, ErrorCode::kCorrupt);
      EXPECT_NE(status.error().message.find("chunk 4711 (generation 5"),
                std::string::npos);
      FlipBit(directory_, offset);
    }
    ASSERT_TRUE(tier->Read(*chunk, back.data()));
    EXPECT_EQ(std::memcmp(data.data(), back.data(), kSmall), 0);
  }
}

TEST_F(DiskTierTest, WhatIsRememberedOfACompressedChunkIsCompared) {
  const auto tier = Open(64 * kMiB);
  ASSERT_TRUE(tier);
  Pages data(kSmall), back(kSmall);
  FillKind("sparse", data.data(), kSmall);
  const auto chunk =
      tier->Write(data.data(), kSmall, 1, 1, DiskCodec::kZstd).value();
  const auto expect = [&](const DiskChunk& wrong, ErrorCode code,
                          const char* says) {
    const Status status = tier->Read(wrong, back.data());
    ASSERT_FALSE(status) << says;
    EXPECT_EQ(status.error().code, code) << says;
    EXPECT_NE(status.error().message.find(says), std::string::npos)
        << status.error().message;
  };
  DiskChunk wrong = chunk;
  wrong.stored.codec = DiskCodec::kLz4;
  expect(wrong, ErrorCode::kCorrupt, "its codec is 2 instead of 1");
  wrong = chunk;
  wrong.stored.width = chunk.stored.width == 8 ? 4 : 8;
  expect(wrong, ErrorCode::kCorrupt, "a width of");
  wrong = chunk;
  wrong.payload_checksum ^= 1;
  expect(wrong, ErrorCode::kCorrupt, "payload of checksum");
  wrong = chunk;
  wrong.stored.bytes = 2 * kLarge;
  expect(wrong, ErrorCode::kInvalidArgument, "nothing was read");
}

// Holes of the size of compressed chunks hold one that is not.
TEST_F(DiskTierTest, AFragmentedFileTakesWhatHasRoomInPieces) {
  const auto tier = Open(8 * kMiB);
  ASSERT_TRUE(tier);
  Pages data(kSmall), noise(kSmall), back(kSmall);
  FillKind("bf16", data.data(), kSmall);
  FillKind("random", noise.data(), kSmall);
  std::vector<DiskChunk> chunks;
  for (;;) {
    const auto chunk = tier->Write(data.data(), kSmall, 1, 1, DiskCodec::kZstd);
    if (!chunk) break;
    chunks.push_back(*chunk);
  }
  ASSERT_GT(chunks.size(), 4u);  // as many as there would be raw
  EXPECT_FALSE(tier->HasRoom(kSmall));
  tier->Free(chunks[0]);
  tier->Free(chunks[2]);
  ASSERT_TRUE(tier->HasRoom(kSmall));
  const auto raw = tier->Write(noise.data(), kSmall, 2, 1);
  ASSERT_TRUE(raw) << raw.error().message;
  EXPECT_GT(raw->place.count, 1);
  ASSERT_TRUE(tier->Read(*raw, back.data()));
  EXPECT_EQ(std::memcmp(noise.data(), back.data(), kSmall), 0);
  ASSERT_TRUE(tier->Read(chunks[1], back.data()));
  EXPECT_EQ(std::memcmp(data.data(), back.data(), kSmall), 0);
}

}  // namespace
}  // namespace stratalloc
